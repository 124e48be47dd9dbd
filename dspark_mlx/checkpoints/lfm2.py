"""LiquidAI's LFM2 drafters: nested ids, interleaved rope, the target's tables, slot 0 predicts."""

from __future__ import annotations

from dspark_mlx.config import DrafterConfig

from . import block, reading
from .mapping import MappedTensors, unchanged, with_draft_ids, without_prefix
from .reading import Config, Infos, flag
from .rope import read_rope
from .tensors import TensorSource

NAME = "LiquidAI LFM2"
ARCHITECTURE = "Lfm2DSparkDraftModel"
PREFIX = "model."  # of all tensors, in some exports

NESTED = ("target_layer_ids", "mask_token_id", "num_target_layers", "sample_from_anchor",
          "is_causal")  # fmt: skip
KEYS = block.KEYS | {name: (f"dflash_config.{name}", name) for name in NESTED}
REQUIRED = (*block.REQUIRED, "num_target_layers", "rope_is_neox_style")


def matches(config: Config) -> bool:
    """Whether the config bears LiquidAI's architecture."""
    return reading.one_architecture(config) == ARCHITECTURE


def view(config: Config, tensors: TensorSource, where: str) -> TensorSource:
    """DeepSpec's names, without the prefix."""
    made = without_prefix(unchanged(tensors), PREFIX, where)
    return MappedTensors(tensors, with_draft_ids(made, where))


def resolve(config: Config, infos: Infos, where: str) -> DrafterConfig:
    """State every convention. Raises CheckpointError for what is missing or contradictory."""
    reading.refuse_quantized(config, where)
    flat = reading.flatten(config, KEYS, REQUIRED, where)
    reading.check_whole(flat, reading.SHAPE[:5], where)
    reading.check_granted(flat, reading.GRANTED, where)
    block.check_depth(flat, where)
    causal = flag(flat, "is_causal", where) if "is_causal" in flat else None
    return block.resolve_block(
        flat,
        infos,
        where,
        slot=0 if flag(flat, "sample_from_anchor", where, default=True) else 1,
        rope=read_rope(flat, where, scaled=True),
        masks=reading.masks(
            flat, where, sliding_causal=causal, full_causal=bool(causal), decider="is_causal"
        ),
    )
