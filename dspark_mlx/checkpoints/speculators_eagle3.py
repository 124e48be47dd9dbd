"""The speculators library's Eagle3: one llama or Qwen3 layer, a reduced vocabulary, extra norms."""

from __future__ import annotations

from typing import Any

from dspark_mlx.config import DrafterConfig

from . import block, reading, speculators
from .reading import SHAPE, Config, Infos, flag, refuse
from .rope import read_rope
from .speculators import KEYS, bears_marks, view

__all__ = ["NAME", "matches", "resolve", "view"]

NAME = "speculators Eagle3"
REQUIRED = (*SHAPE, "target_layer_ids", "algorithm", "model_type", "proposals")
GRANTED = reading.GRANTED | {"model_type": ("llama", "qwen3"), "hc_mult": (1,)}


def matches(config: Config) -> bool:
    """Whether it is a speculators config of the eagle3 algorithm."""
    return bears_marks(config) and speculators.algorithm_of(config) == "eagle3"


def resolve(config: Config, infos: Infos, where: str) -> DrafterConfig:
    """State every convention. Raises CheckpointError for what is missing or contradictory."""
    reading.refuse_quantized(config, where)
    if not reading.found_at(config, KEYS["target_layer_ids"][1]) and not reading.found_at(
        config, KEYS["target_layer_ids"][0]
    ):
        refuse(
            where,
            "missing eagle_aux_hidden_state_layer_ids, whose default hangs on the target's depth "
            "n: add [2, n // 2, n - 3] (n = num_hidden_layers of the target) to the config",
        )
    flat = reading.flatten(config, KEYS, REQUIRED, where)
    reading.check_whole(flat, (*SHAPE[:5], "vocab_size", "draft_vocab_size"), where)
    reading.check_granted(flat, GRANTED, where)
    speculators.check_width(flat, where)
    steps = speculators.speculative_tokens(flat, where)
    if steps is None:
        refuse(where, "missing speculative_tokens in speculators_config.proposal_methods")
    fields: dict[str, Any] = {
        "kind": "eagle3",
        "backbone": flat["model_type"],
        **{key: flat[key] for key in SHAPE},
        "head_dim": reading.head_dim(flat),
        "rope": read_rope(flat, where, scaled=True),
        "block_size": steps,
        "mask_token_id": None,
        "target_layer_ids": tuple(speculators.tapped(flat, where)),
        "num_target_layers": None,
        "layer_masks": reading.masks(flat, where, sliding_causal=True, full_causal=False),
        "feature_norm": _feature_norm(flat, infos, where),
        "norm_before_residual": flag(flat, "norm_before_residual", where),
        "norm_output": flag(flat, "norm_output", where),
        **block.shared(flat, infos, where),
    }
    return DrafterConfig(**fields).checked(where)


# config key -> (our name for it, the tensor that goes with it)
_NORMS = {"norm_before_fc": ("joint", "input_norm.weight"), "fc_norm": ("each", "fc_norm.0.weight")}


def _feature_norm(flat: Config, infos: Infos, where: str) -> str | None:
    """Which norm the taps pass before `fc`; the tensors must say the same."""
    chosen = None
    for key, (name, tensor) in _NORMS.items():
        asked = flag(flat, key, where)
        if asked != (tensor in infos):
            has = "holds" if tensor in infos else "lacks"
            refuse(where, f"{key} is {str(asked).lower()}, but the file {has} {tensor}")
        if asked and chosen:
            refuse(where, f"both {' and '.join(_NORMS)} are true, expected one of them at most")
        chosen = name if asked else chosen
    return chosen
