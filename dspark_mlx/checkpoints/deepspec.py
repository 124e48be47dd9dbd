"""DeepSpec's native packaging (method section 11): top-level keys, a copy of the target's config.

Tensor names are taken over as they are; the modules of `drafters` bear the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark_mlx.config import ConfidenceConfig, DrafterConfig, MarkovConfig, RopeConfig
from dspark_mlx.errors import CheckpointError, UnsupportedError

from .tensors import TensorInfo

NAME = "DeepSpec native"

# architecture -> (kind, backbone form); DeepSpec's DFlash bears the same name, with rank 0
ARCHITECTURES = {
    "Qwen3DSparkModel": ("dspark", "qwen3"),
    "Gemma4DSparkModel": ("dspark", "gemma4"),
    "Qwen3Eagle3Model": ("eagle3", "qwen3"),
    "Gemma4Eagle3Model": ("eagle3", "gemma4"),
}

REQUIRED = (
    "block_size",
    "target_layer_ids",
    "mask_token_id",
    "num_target_layers",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
)


def matches(config: Mapping[str, Any]) -> bool:
    """Whether the config bears a DeepSpec architecture and none of another packaging's marks."""
    return architecture_of(config) in ARCHITECTURES and "dflash_config" not in config


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """The one architecture a config names, or None."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and len(names) == 1 else None


def resolve(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str
) -> DrafterConfig:
    """State every convention of the checkpoint. Raises CheckpointError for what is missing."""
    kind, backbone = ARCHITECTURES[str(architecture_of(config))]
    if (kind, backbone) != ("dspark", "qwen3"):
        raise UnsupportedError(
            f"{where}: {architecture_of(config)} is a {kind} drafter of {backbone} form, which "
            "is not supported yet; Qwen3DSparkModel is"
        )
    if missing := [key for key in REQUIRED if config.get(key) is None]:
        raise CheckpointError(f"{where}: missing {', '.join(missing)}")
    _check_types(config, where)
    depth = config["num_target_layers"]
    if config["target_layer_ids"][-1] >= depth - 1:
        raise CheckpointError(
            f"{where}: target_layer_ids {config['target_layer_ids']} reach the final layer of a "
            f"target with {depth} layers; DeepSpec trains on layers before it"
        )
    return DrafterConfig(
        kind=kind,
        backbone=backbone,
        **{key: config[key] for key in REQUIRED if key != "target_layer_ids"},
        head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        rope=_rope(config, where),
        target_layer_ids=tuple(config["target_layer_ids"]),
        max_position_embeddings=config.get("max_position_embeddings"),
        embeddings="own" if "embed_tokens.weight" in tensors else "target",
        head="own" if "lm_head.weight" in tensors else "target",
        markov=_markov(config, where),
        confidence=_confidence(config),
        confidence_temperatures=_temperatures(config),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
    ).checked(where)


def _check_types(config: Mapping[str, Any], where: str) -> None:
    ids = config["target_layer_ids"]
    if not isinstance(ids, list) or not ids or any(type(i) is not int for i in ids):
        raise CheckpointError(f"{where}: target_layer_ids is {ids!r}, expected a list of integers")
    for key in REQUIRED:
        if key not in ("target_layer_ids", "rms_norm_eps") and type(config[key]) is not int:
            raise CheckpointError(f"{where}: {key} is {config[key]!r}, expected an integer")
    if config.get("attention_bias"):
        raise UnsupportedError(f"{where}: attention_bias is on; no known drafter has it")


def _rope(config: Mapping[str, Any], where: str) -> RopeConfig:
    # a Qwen3-form drafter rotates the whole head by the plain rule; scaling fields and partial
    # factors found here were copied from the target's config and had no part in its training
    nested = config.get("rope_parameters") or {}
    theta = config.get("rope_theta", nested.get("rope_theta"))
    if not isinstance(theta, int | float) or theta <= 0:
        raise CheckpointError(f"{where}: rope_theta is {theta!r}, expected a positive number")
    return RopeConfig(theta=float(theta))


def _markov(config: Mapping[str, Any], where: str) -> MarkovConfig | None:
    rank = config.get("markov_rank") or 0
    if not rank:
        return None
    if type(rank) is not int or rank < 0:
        raise CheckpointError(f"{where}: markov_rank is {rank!r}, expected a whole number")
    return MarkovConfig(type=str(config.get("markov_head_type") or "vanilla"), rank=rank)


def _confidence(config: Mapping[str, Any]) -> ConfidenceConfig | None:
    if not config.get("enable_confidence_head"):
        return None
    return ConfidenceConfig(with_markov=bool(config.get("confidence_head_with_markov")))


def _temperatures(config: Mapping[str, Any]) -> tuple[float, ...] | None:
    values = config.get("confidence_temperatures")
    return None if values is None else tuple(float(v) for v in values)
