"""DeepSpec's native packaging (method section 11): top-level keys, a copy of the target's config.

Tensor names are taken over as they are; the modules of `drafters` bear the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import repr as short
from typing import Any

from dspark_mlx.config import ConfidenceConfig, DrafterConfig, MarkovConfig, RopeConfig
from dspark_mlx.config_rules import is_positive, is_whole
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

# an Eagle3 config counts unrolled steps and has no mask
BLOCK = {"dspark": ("block_size", "mask_token_id"), "eagle3": ("ttt_length",)}
REQUIRED = (
    "target_layer_ids",
    "num_target_layers",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
)

# what a drafter may state, and the values that mean what this module takes for granted
GRANTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "qwen3": {"hidden_act": ("silu", "swish")},
    "gemma4": {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "enable_moe_block": (False,),
        "hidden_size_per_layer_input": (0,),
        "use_double_wide_mlp": (False,),
    },
    "all": {
        "attention_bias": (False,),
        "sample_from_anchor": (True,),
        "dflash_query_causal": (False,),
    },
}


def matches(config: Mapping[str, Any]) -> bool:
    """Whether the config bears a DeepSpec architecture and none of another packaging's marks."""
    return architecture_of(config) in ARCHITECTURES and "dflash_config" not in config


def architecture_of(config: Mapping[str, Any]) -> str | None:
    """The one architecture a config names, or None."""
    names = config.get("architectures")
    one = names[0] if isinstance(names, list) and len(names) == 1 else None
    return one if isinstance(one, str) else None


def resolve(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str
) -> DrafterConfig:
    """State every convention of the checkpoint. Raises CheckpointError for what is missing."""
    kind, backbone = ARCHITECTURES[str(architecture_of(config))]
    required = (*BLOCK[kind], *REQUIRED)
    if missing := [key for key in required if config.get(key) is None]:
        raise CheckpointError(f"{where}: missing {', '.join(missing)}")
    _check_types(config, required, backbone, where)
    depth = config["num_target_layers"]
    if config["target_layer_ids"][-1] >= depth - 1:
        raise CheckpointError(
            f"{where}: target_layer_ids {short(config['target_layer_ids'])} reach the final layer "
            f"of a target with {depth} layers; DeepSpec trains on layers before it"
        )
    taken = {key: config[key] for key in REQUIRED if key != "target_layer_ids"}
    taken["block_size"] = config[BLOCK[kind][0]]
    taken["mask_token_id"] = config["mask_token_id"] if kind == "dspark" else None
    return DrafterConfig(
        kind=kind,
        backbone=backbone,
        **taken | FORMS[backbone](config, where),
        target_layer_ids=tuple(config["target_layer_ids"]),
        max_position_embeddings=config.get("max_position_embeddings"),
        embeddings="own" if "embed_tokens.weight" in tensors else "target",
        head="own" if "lm_head.weight" in tensors else "target",
        markov=_markov(config, where),
        confidence=_confidence(config, where),
        confidence_temperatures=_temperatures(config, where),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
    ).checked(where)


def _check_types(
    config: Mapping[str, Any], required: tuple[str, ...], backbone: str, where: str
) -> None:
    ids = config["target_layer_ids"]
    if not isinstance(ids, list) or not ids or any(type(i) is not int for i in ids):
        raise CheckpointError(
            f"{where}: target_layer_ids is {short(ids)}, expected a list of integers"
        )
    for key in required:
        low = 0 if key == "mask_token_id" else 1
        if key not in ("target_layer_ids", "rms_norm_eps") and not is_whole(config[key], low):
            raise CheckpointError(
                f"{where}: {key} is {short(config[key])}, expected an integer from {low} to 2**28"
            )
    for key, values in (GRANTED["all"] | GRANTED[backbone]).items():
        if (value := config.get(key)) is not None and value not in values:
            raise UnsupportedError(f"{where}: {key} {short(value)} is not supported yet")
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise UnsupportedError(
            f"{where}: layer_types {short(kinds)} are not supported yet; full_attention is"
        )


def _qwen3_form(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    # a Qwen3-form drafter rotates the whole head by the plain rule; scaling fields and partial
    # factors found here were copied from the target's config and had no part in its training
    nested = config.get("rope_parameters")
    inner = nested.get("rope_theta") if isinstance(nested, dict) else None
    stated = config.get("head_dim")
    derived = config["hidden_size"] // config["num_attention_heads"]
    return {
        "head_dim": derived if stated is None else stated,
        "rope": RopeConfig(_theta(config.get("rope_theta", inner), where)),
    }


def _gemma4_form(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Every layer has the geometry of the target's full-attention layers (section 3.5)."""
    every = config.get("rope_parameters")
    full = every.get("full_attention") if isinstance(every, dict) else None
    full = full if isinstance(full, dict) else GEMMA4_ROPE
    shared = _flag(config, "attention_k_eq_v", where)
    kv_heads = config.get("num_global_key_value_heads") if shared else None
    partial = full.get("partial_rotary_factor", GEMMA4_ROPE["partial_rotary_factor"])
    return {
        "head_dim": config.get("global_head_dim") or config.get("head_dim"),
        "num_key_value_heads": kv_heads or config["num_key_value_heads"],
        "rope": RopeConfig(_theta(full.get("rope_theta"), where), partial=partial),
        "embedding_scale": config["hidden_size"] ** 0.5,
        "logit_softcap": config.get("final_logit_softcapping"),
        "values_are_keys": shared,
    }


# what Gemma4 configs mean when they name no rope parameters
GEMMA4_ROPE = {"rope_theta": 1e6, "partial_rotary_factor": 0.25}
FORMS: dict[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "qwen3": _qwen3_form,
    "gemma4": _gemma4_form,
}


def _theta(value: Any, where: str) -> float:
    if not is_positive(value):
        raise CheckpointError(f"{where}: rope_theta is {short(value)}, expected a positive number")
    return float(value)


def _markov(config: Mapping[str, Any], where: str) -> MarkovConfig | None:
    rank, kind = config.get("markov_rank"), config.get("markov_head_type")
    if rank is None or is_whole(rank, 0, 0):
        return None
    if not is_whole(rank):
        raise CheckpointError(f"{where}: markov_rank is {short(rank)}, expected a whole number")
    return MarkovConfig(type="vanilla" if kind is None else kind, rank=rank)


def _confidence(config: Mapping[str, Any], where: str) -> ConfidenceConfig | None:
    with_markov = _flag(config, "confidence_head_with_markov", where)
    enabled = _flag(config, "enable_confidence_head", where)
    return ConfidenceConfig(with_markov) if enabled else None


def _temperatures(config: Mapping[str, Any], where: str) -> tuple[float, ...] | None:
    values = config.get("confidence_temperatures")
    if values is None:
        return None
    if not isinstance(values, list) or not all(map(is_positive, values)):
        raise CheckpointError(
            f"{where}: confidence_temperatures is {short(values)}, expected positive numbers"
        )
    return tuple(float(v) for v in values)


def _flag(config: Mapping[str, Any], key: str, where: str) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} is {short(value)}, expected true or false")
    return bool(value)
