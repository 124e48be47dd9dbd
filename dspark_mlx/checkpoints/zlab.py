"""z-lab's DFlash: keys in `dflash_config` or at the top, the target's tables, slot 1 on predicts.

Any target gets a Qwen3-form drafter, which reads the target's raw embedding rows and head.
"""

from __future__ import annotations

from reprlib import repr as short
from typing import Any

from dspark_mlx.config import DrafterConfig
from dspark_mlx.config_rules import is_positive

from . import block, reading
from .mapping import MappedTensors, unchanged, with_draft_ids
from .reading import Config, Infos, flag, refuse
from .rope import read_rope
from .tensors import TensorSource

NAME = "z-lab DFlash"
ARCHITECTURE = "DFlashDraftModel"

FACTORS = {  # their name -> ours
    "input_embedding_scale": "embedding_scale",
    "output_multiplier": "output_multiplier",
    "final_logit_softcapping": "logit_softcap",
}
NESTED = ("target_layer_ids", "mask_token_id", "block_size", "sample_from_anchor", *FACTORS)
KEYS = block.KEYS | {name: (f"dflash_config.{name}", name) for name in NESTED} | {
    "num_target_layers": ("num_target_layers", "dflash_config.num_target_layers"),
    "is_causal": ("is_causal", "dflash_config.is_causal", "dflash_config.causal",
                  "dflash_query_causal"),
    "attention_sink_bias": ("dflash_config.attention_sink_bias", "attention_sink_bias"),
    "sliding_window": ("sliding_window", "dflash_config.swa_window_size"),
    "use_swa": ("dflash_config.use_swa",),
}  # fmt: skip
REQUIRED = block.REQUIRED


def matches(config: Config) -> bool:
    """Whether the config bears z-lab's architecture and no mark of another packaging."""
    other = ("selector_rank", "conv_kernel_size", "dflash_config.selector_rank",
             "dflash_config.conv_kernel_size", "speculators_model_type", "speculators_config",
             "dflash_config.projector_type", "quantization_config", "hf_quant_config")  # fmt: skip
    bears = reading.one_architecture(config) == ARCHITECTURE
    return bears and not any(reading.found_at(config, mark) for mark in other)


def view(config: Config, tensors: TensorSource, where: str) -> TensorSource:
    """DeepSpec's names; a vocabulary map becomes absolute."""
    return MappedTensors(tensors, with_draft_ids(unchanged(tensors), where))


def resolve(config: Config, infos: Infos, where: str) -> DrafterConfig:
    """State every convention. Raises CheckpointError for what is missing or contradictory."""
    flat = reading.flatten(config, KEYS, REQUIRED, where)
    reading.check_whole(flat, reading.SHAPE[:5], where)
    reading.check_granted(flat, reading.GRANTED, where)
    block.check_depth(flat, where)
    if flat.get("markov_rank"):
        refuse(where, f"markov_rank is {short(flat['markov_rank'])} in a {ARCHITECTURE} config")
    stated = flag(flat, "is_causal", where) if "is_causal" in flat else None
    return block.resolve_block(
        flat,
        infos,
        where,
        slot=0 if flag(flat, "sample_from_anchor", where) else 1,
        rope=read_rope(flat, where, scaled=True),
        masks=reading.masks(
            flat,
            where,
            sliding_causal=True if stated is None else stated,
            full_causal=bool(stated),
        ),
        **_factors(flat, where),
    )


def _factors(flat: Config, where: str) -> dict[str, Any]:
    for name in FACTORS:
        if (value := flat.get(name)) is not None and not is_positive(value):
            refuse(where, f"{name} is {short(value)}, expected a positive number")
    return {ours: flat[name] for name, ours in FACTORS.items() if name in flat}
