"""A block drafter's config (DSpark, DFlash) from a flat one: what all packagings share."""

from __future__ import annotations

from collections.abc import Callable
from reprlib import repr as short
from typing import Any

from dspark_mlx.config import DrafterConfig, LayerMask, RopeConfig

from . import reading
from .reading import HEADS, LAYERS, SHAPE, Config, Infos, flag, refuse

OPTIONAL = ("num_target_layers", "draft_vocab_size")
REQUIRED = ("block_size", "target_layer_ids", "mask_token_id", *SHAPE)
OTHERS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
CLAIMED = ("has_lm_head", "has_embed_tokens", "attention_sink_bias")
KEYS = reading.level((*REQUIRED, *OPTIONAL, *LAYERS, *HEADS, *OTHERS, *CLAIMED)) | reading.DTYPE


def resolve_block(
    flat: Config,
    infos: Infos,
    where: str,
    *,
    slot: int,
    rope: RopeConfig,
    masks: tuple[LayerMask, ...],
    **more: Any,
) -> DrafterConfig:
    """The explicit config; `more` overrides single fields. Raises CheckpointError."""
    sizes = tuple(k for k in REQUIRED if k not in ("target_layer_ids", "rms_norm_eps"))
    reading.check_whole(flat, tuple(k for k in sizes if k != "mask_token_id"), where)
    reading.check_whole(flat, ("mask_token_id",), where, low=0)
    reading.check_whole(flat, OPTIONAL, where)
    check_claims(flat, infos, where)
    fields: dict[str, Any] = {
        "kind": "dspark",
        "backbone": "qwen3",
        **{key: flat[key] for key in SHAPE},
        "head_dim": reading.head_dim(flat),
        "rope": rope,
        "block_size": flat["block_size"],
        "mask_token_id": flat["mask_token_id"],
        "target_layer_ids": tuple(reading.layer_ids(flat, where)),
        "num_target_layers": flat.get("num_target_layers"),
        "predict_from_slot": slot,
        "layer_masks": masks,
        "markov": reading.markov(flat, infos, where),
        "confidence": reading.confidence(flat, where),
        "confidence_temperatures": reading.temperatures(flat, where),
        **shared(flat, infos, where),
    }
    return DrafterConfig(**fields | more).checked(where)


def shared(flat: Config, infos: Infos, where: str) -> dict[str, Any]:
    """Fields that any kind of drafter takes from its tensors and from loose keys."""
    return {
        "max_position_embeddings": flat.get("max_position_embeddings"),
        "embeddings": "own" if "embed_tokens.weight" in infos else "target",
        "head": "own" if "lm_head.weight" in infos else "target",
        "attention_sinks": any(name.endswith(".attention_sink_bias") for name in infos),
        "draft_vocab_size": draft_vocabulary(flat, infos, where),
        "dtype": str(flat.get("dtype") or "bfloat16"),
    }


def draft_vocabulary(flat: Config, infos: Infos, where: str) -> int | None:
    """The rows of the head where they are not the target's tokens one by one."""
    size, full, mapped = flat.get("draft_vocab_size"), flat["vocab_size"], "draft_ids" in infos
    if mapped and size is None:
        refuse(where, "the file holds a d2t vocabulary map, but the config no draft_vocab_size")
    if not mapped and size not in (None, full):
        refuse(where, f"draft_vocab_size is {size} of {full}, but the file holds no d2t map")
    return size if mapped else None


def check_depth(flat: Config, where: str) -> None:
    """Raise CheckpointError for a tap of the target's final layer, which no trainer records."""
    ids, depth = reading.layer_ids(flat, where), flat.get("num_target_layers")
    reading.check_whole(flat, ("num_target_layers",), where)
    if depth is not None and ids[-1] >= depth - 1:
        refuse(
            where,
            f"target_layer_ids {short(ids)} reach the final layer of a target with "
            f"{depth} layers; such a drafter is trained on layers before it",
        )


# what a config claims -> whether the tensors bear it out
CLAIMS: dict[str, Callable[[Infos], bool]] = {
    "has_lm_head": lambda infos: "lm_head.weight" in infos,
    "has_embed_tokens": lambda infos: "embed_tokens.weight" in infos,
    "attention_sink_bias": lambda infos: any(n.endswith(".attention_sink_bias") for n in infos),
}


def check_claims(flat: Config, infos: Infos, where: str) -> None:
    """Raise CheckpointError where a config disagrees with its tensors, or with itself on taps."""
    for key, holds in CLAIMS.items():
        if key in flat and flag(flat, key, where) != holds(infos):
            has = "the tensors for it" if holds(infos) else "no tensors for it"
            refuse(where, f"{key} is {str(flat[key]).lower()}, but the file holds {has}")
    ids = reading.layer_ids(flat, where)
    for key in OTHERS:  # the other convention: entry j is the output of layer j - 1
        if key in flat and flat[key] != [i + 1 for i in ids]:
            found, expected = short(flat[key]), short([i + 1 for i in ids])
            refuse(where, f"{key} is {found}, expected {expected} beside target_layer_ids")
    if "use_swa" in flat:
        windowed = "sliding_attention" in (flat.get("layer_types") or [])
        if flag(flat, "use_swa", where) != windowed:
            refuse(where, f"use_swa is {str(flat['use_swa']).lower()}, layer_types say otherwise")
