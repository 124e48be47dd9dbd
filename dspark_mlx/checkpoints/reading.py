"""Values of a source config: found under any of their names, checked, and made explicit.

Packagings flatten their config into DeepSpec's key names first; everything here reads that form.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as short
from typing import Any, NoReturn

from dspark_mlx.config import ConfidenceConfig, LayerMask, MarkovConfig
from dspark_mlx.config_rules import MAX_LAYERS, is_positive, is_whole
from dspark_mlx.errors import CheckpointError, UnsupportedError

from .tensors import TensorInfo

Config = Mapping[str, Any]
Infos = Mapping[str, TensorInfo]
KeyMap = Mapping[str, tuple[str, ...]]  # our name -> where it may stand, dotted, best first

# every drafter's shape; none of it is ever guessed
SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
)
# what a config may say about its layers without being asked for it
LAYERS = (
    "head_dim",
    "rope_theta",
    "rope_parameters",
    "rope_scaling",
    "rope_is_neox_style",
    "max_position_embeddings",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
)
HEADS = (
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
    "confidence_temperatures",
)
DTYPE = {"dtype": ("dtype", "torch_dtype")}

# what a Qwen3-form drafter may state, and the values that mean what its module takes for granted
GRANTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
}
# head type -> the tensor that only this type has
HEAD_MARKS = {
    "gated": "markov_head.gate_proj.weight",
    "rnn": "markov_head.joint_proj.weight",
}


def refuse(where: str, found: str) -> NoReturn:
    """Raise CheckpointError as `where: found`."""
    raise CheckpointError(f"{where}: {found}")


def found_at(config: Config, path: str) -> Any:
    """The value at a dotted path, None where there is none."""
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def level(names: tuple[str, ...], prefix: str = "") -> dict[str, tuple[str, ...]]:
    """A key map for names that stand under `prefix` (default: at the top) and nowhere else."""
    return {name: (f"{prefix}{name}",) for name in names}


def flatten(config: Config, keys: KeyMap, required: tuple[str, ...], where: str) -> dict[str, Any]:
    """The values that `keys` finds, by our names.

    Raises CheckpointError for a required one that is missing, and for one that stands in two
    places with two values.
    """
    flat: dict[str, Any] = {}
    for name, paths in keys.items():
        stated = {p: v for p in paths if (v := found_at(config, p)) is not None}
        for path, value in stated.items():
            if name in flat and flat[name] != value:
                first = next(iter(stated))
                refuse(where, f"{first} is {short(flat[name])}, but {path} is {short(value)}")
            flat[name] = value
    if missing := [" or ".join(keys[name]) for name in required if name not in flat]:
        refuse(where, f"missing {', '.join(missing)}")
    return flat


def check_whole(flat: Config, names: tuple[str, ...], where: str, low: int = 1) -> None:
    """Raise CheckpointError for the first of these values that is no integer from `low` on."""
    for name in names:
        if (value := flat.get(name)) is not None and not is_whole(value, low):
            refuse(where, f"{name} is {short(value)}, expected an integer from {low} to 2**28")


def check_granted(flat: Config, granted: Mapping[str, tuple[Any, ...]], where: str) -> None:
    """Raise UnsupportedError for a value that the modules do not take for granted."""
    for key, values in granted.items():
        if (value := flat.get(key)) is not None and value not in values:
            raise UnsupportedError(f"{where}: {key} {short(value)} is not supported yet")


def refuse_quantized(config: Config, where: str) -> None:
    """Raise UnsupportedError for weights that are stored quantized in a way not read here."""
    settings = config.get("quantization_config") or config.get("hf_quant_config")
    if settings:
        method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
        raise UnsupportedError(
            f"{where}: weights quantized with {short(method)} are not read in this packaging; "
            "use the unquantized version"
        )


def flag(flat: Config, key: str, where: str, default: bool = False) -> bool:
    """A boolean; `default` where it is not stated."""
    value = flat.get(key)
    if value is not None and not isinstance(value, bool):
        refuse(where, f"{key} is {short(value)}, expected true or false")
    return default if value is None else value


def layer_ids(flat: Config, where: str, key: str = "target_layer_ids") -> list[int]:
    """The tapped layers as the file states them."""
    ids = flat.get(key)
    if not isinstance(ids, list) or not ids or any(type(i) is not int for i in ids):
        refuse(where, f"{key} is {short(ids)}, expected a list of integers")
    return ids


def head_dim(flat: Config) -> Any:
    """The stated size of a head, or the width shared out evenly."""
    stated = flat.get("head_dim")
    return flat["hidden_size"] // flat["num_attention_heads"] if stated is None else stated


def masks(
    flat: Config,
    where: str,
    *,
    sliding_causal: bool | None,
    full_causal: bool,
    decider: str = "sliding_window_non_causal",
) -> tuple[LayerMask, ...]:
    """What each layer sees, from `layer_types`; () where all see everything.

    `sliding_causal` None: the file has to say it, under `decider`, and does not.
    """
    count, kinds = flat["num_hidden_layers"], flat.get("layer_types")
    if not is_whole(count, 1, MAX_LAYERS):
        refuse(where, f"num_hidden_layers is {count}, more than the {MAX_LAYERS} that make sense")
    windowed = flag(flat, "use_sliding_window", where, default=True)
    if kinds is None:
        if flat.get("use_sliding_window") and flat.get("sliding_window") is not None:
            refuse(where, "missing layer_types, which say where use_sliding_window applies")
        kinds = ["full_attention"] * count
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or any(kind not in known for kind in kinds):
        raise UnsupportedError(
            f"{where}: layer_types {short(kinds)} are not supported yet; {' and '.join(known)} are"
        )
    if len(kinds) != count:
        refuse(where, f"layer_types has {len(kinds)} entries for {count} layers")
    if "sliding_attention" in kinds:
        if not windowed or not is_whole(flat.get("sliding_window")):
            refuse(where, "layer_types has sliding_attention, but there is no sliding_window")
        if sliding_causal is None:
            refuse(where, f"missing {decider}, which tells whether sliding layers are causal")
    full = LayerMask(None, full_causal)
    sliding = LayerMask(flat.get("sliding_window"), bool(sliding_causal))
    every = tuple(sliding if kind == "sliding_attention" else full for kind in kinds)
    return every if any(mask != LayerMask() for mask in every) else ()


def markov(flat: Config, infos: Infos, where: str) -> MarkovConfig | None:
    """The sequential head, whose type must be the one that the tensors are of."""
    rank, kind = flat.get("markov_rank"), flat.get("markov_head_type")
    if rank is None or is_whole(rank, 0, 0):
        if any(name.startswith("markov_head.") for name in infos):
            refuse(where, f"markov_rank is {rank}, but the file holds a Markov head")
        return None
    if not is_whole(rank):
        refuse(where, f"markov_rank is {short(rank)}, expected a whole number")
    kind = "vanilla" if kind is None else kind
    for name, mark in HEAD_MARKS.items():
        if (kind == name) != (mark in infos) and kind in ("vanilla", *HEAD_MARKS):
            has = "has" if mark in infos else "lacks"
            refuse(where, f"markov_head_type is {kind}, but the file {has} {mark}")
    return MarkovConfig(type=kind, rank=rank)


def confidence(flat: Config, where: str) -> ConfidenceConfig | None:
    """The confidence head, where it is enabled."""
    with_markov = flag(flat, "confidence_head_with_markov", where)
    enabled = flag(flat, "enable_confidence_head", where)
    return ConfidenceConfig(with_markov) if enabled else None


def temperatures(flat: Config, where: str) -> tuple[float, ...] | None:
    """Stored calibration of the confidences, one number per draft."""
    values = flat.get("confidence_temperatures")
    if values is None:
        return None
    if not isinstance(values, list) or not all(map(is_positive, values)):
        refuse(where, f"confidence_temperatures is {short(values)}, expected positive numbers")
    return tuple(float(v) for v in values)


def one_architecture(config: Config) -> str | None:
    """The one architecture a config names, or None."""
    names = config.get("architectures")
    one = names[0] if isinstance(names, list) and len(names) == 1 else None
    return one if isinstance(one, str) else None
