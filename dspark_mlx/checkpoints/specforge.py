"""SpecForge / SGLang: a plain Qwen3 config, `dflash_config` with projector type "dspark".

Slot 0 predicts and YaRN is real, whatever the shipped dflash.py says: its loop is DFlash's.
"""

from __future__ import annotations

from dspark_mlx.config import DrafterConfig

from . import block, reading
from .mapping import MappedTensors, split_rows, unchanged, with_draft_ids
from .reading import Config, Infos, flag
from .rope import read_rope
from .tensors import TensorSource

NAME = "SpecForge"
ARCHITECTURE, PROJECTOR = "DSparkDraftModel", "dspark"

NESTED = ("target_layer_ids", "mask_token_id", "block_size", "sample_from_anchor",
          "num_target_layers", "dflash_query_causal", *reading.HEADS)  # fmt: skip
KEYS = block.KEYS | {name: (f"dflash_config.{name}", name) for name in NESTED}
REQUIRED = block.REQUIRED
FUSED = ".self_attn.qkv_proj.weight"


def matches(config: Config) -> bool:
    """Whether architecture and projector type are SpecForge's, with no mark of speculators."""
    return (
        reading.one_architecture(config) == ARCHITECTURE
        and reading.found_at(config, "dflash_config.projector_type") in (None, PROJECTOR)
        and not (config.get("speculators_model_type") or config.get("speculators_config"))
    )


def view(config: Config, tensors: TensorSource, where: str) -> TensorSource:
    """DeepSpec's names; a fused `qkv_proj` is cut into its three parts."""
    made = with_draft_ids(unchanged(tensors), where)
    flat = reading.flatten(config, KEYS, REQUIRED, where)
    reading.check_whole(flat, (*reading.SHAPE[:5], "head_dim"), where)
    dim = reading.head_dim(flat)
    heads = {"q": "num_attention_heads", "k": "num_key_value_heads", "v": "num_key_value_heads"}
    for name in [name for name in made if name.endswith(FUSED)]:
        stem = name.removesuffix("qkv_proj.weight")
        parts = {f"{stem}{part}_proj.weight": flat[key] * dim for part, key in heads.items()}
        made = split_rows(made, name, parts, where)
    return MappedTensors(tensors, made)


def resolve(config: Config, infos: Infos, where: str) -> DrafterConfig:
    """State every convention. Raises CheckpointError for what is missing or contradictory."""
    reading.refuse_quantized(config, where)
    flat = reading.flatten(config, KEYS, REQUIRED, where)
    reading.check_granted(flat, reading.GRANTED, where)
    block.check_depth(flat, where)
    causal = flag(flat, "dflash_query_causal", where)
    return block.resolve_block(
        flat,
        infos,
        where,
        slot=0 if flag(flat, "sample_from_anchor", where, default=True) else 1,
        rope=read_rope(flat, where, scaled=True),
        masks=reading.masks(flat, where, sliding_causal=causal, full_causal=causal),
    )
