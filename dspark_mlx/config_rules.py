"""What the values of a drafter's config must be: each rule returns the first thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import repr as short
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import DrafterConfig

MAX_SIZE = 2**28  # mlx keeps dimensions as int32; some are sums of several sizes
MAX_LAYERS = 1024
GROUP_SIZES = (32, 64, 128)  # of quantization, those that mlx has


def first_problem(config: DrafterConfig) -> str | None:
    """The first value that cannot be, in words; None when all is well."""
    return next((problem for rule in _RULES if (problem := rule(config))), None)


_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "block_size",
)
_CHOICES = {
    "embeddings": ("own", "target"),
    "head": ("own", "target"),
    "tap_convention": ("layer_output",),
    "feature_norm": (None, "joint", "each"),
}


def is_whole(value: object, low: int = 1, high: int = MAX_SIZE) -> bool:
    """Whether a value from a config is an integer (no bool) within bounds."""
    return type(value) is int and low <= value <= high


def is_positive(value: object) -> bool:
    """Whether a value from a config is a finite number above zero."""
    return type(value) in (int, float) and 0 < value < 1e30  # type: ignore[operator]


def _wrong_size(c: DrafterConfig) -> str | None:
    for name in _SIZES:
        if not is_whole(value := getattr(c, name)):
            return f"{name} is {short(value)}, expected a positive integer (to 2**28)"
    if c.num_target_layers is not None and not is_whole(c.num_target_layers):
        return f"num_target_layers is {short(c.num_target_layers)}, expected a positive integer"
    for name in ("num_hidden_layers", "num_target_layers", "block_size"):
        if (getattr(c, name) or 0) > MAX_LAYERS:
            return f"{name} is {getattr(c, name)}, more than the {MAX_LAYERS} that make sense"
    if max(c.num_attention_heads, c.num_key_value_heads) * c.head_dim > MAX_SIZE:
        return f"{c.num_attention_heads} heads of size {c.head_dim} are too large"
    if c.num_attention_heads % c.num_key_value_heads:
        return (
            f"{c.num_attention_heads} attention heads cannot be shared by "
            f"{c.num_key_value_heads} key/value heads"
        )
    return None


# field (dotted into nested configs) -> (test of its value, what is expected)
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (lambda v: isinstance(v, str), "a name"),
    "backbone": (lambda v: isinstance(v, str), "a name"),
    "dtype": (lambda v: isinstance(v, str), "a name"),
    "max_position_embeddings": (lambda v: v is None or is_whole(v), "an integer"),
    "rms_norm_eps": (lambda v: is_positive(v) and v < 1, "a small positive number"),
    "rope": (lambda v: hasattr(v, "theta"), "an object"),
    "rope.theta": (is_positive, "a positive number"),
    "rope.interleaved": (lambda v: isinstance(v, bool), "true or false"),
    "rope.partial": (lambda v: is_positive(v) and v <= 1, "a share of the head"),
    "rope.scaling": (lambda v: v is None or isinstance(v, Mapping), "an object"),
    "embedding_scale": (is_positive, "a positive number"),
    "output_multiplier": (is_positive, "a positive number"),
    "rope.rotary_dims": (lambda v: v is None or is_whole(v, 2), "an even number"),
    "attention_sinks": (lambda v: isinstance(v, bool), "true or false"),
    "attention_gate": (lambda v: isinstance(v, bool), "true or false"),
    "draft_vocab_size": (lambda v: v is None or is_whole(v), "a positive integer"),
    "logit_softcap": (lambda v: v is None or is_positive(v), "a positive number"),
    "values_are_keys": (lambda v: isinstance(v, bool), "true or false"),
    "norm_before_residual": (lambda v: isinstance(v, bool), "true or false"),
    "norm_output": (lambda v: isinstance(v, bool), "true or false"),
    "source": (lambda v: isinstance(v, Mapping), "an object"),
}


def _wrong_value(c: DrafterConfig) -> str | None:
    for name, (good, expected) in _VALUES.items():
        value: Any = c
        for part in name.split("."):
            value = getattr(value, part)
        if not good(value):
            return f"{name} is {short(value)}, expected {expected}"
    for name, known in _CHOICES.items():
        if (value := getattr(c, name)) not in known:
            return f"{name} is {short(value)}, known: {', '.join(map(str, known))}"
    if (rotated := c.rope.rotary_dims) is not None and (rotated > c.head_dim or rotated % 2):
        return f"rope.rotary_dims is {rotated}, expected an even number up to {c.head_dim}"
    if c.draft_vocab_size is not None and c.draft_vocab_size > c.vocab_size:
        return f"draft_vocab_size {c.draft_vocab_size} is more than the {c.vocab_size} there are"
    if c.draft_vocab_size is not None and c.head != "own":
        return "a reduced draft vocabulary needs a head of the drafter's own"
    if not is_whole(c.predict_from_slot, 0, c.block_size - 1):
        return f"predict_from_slot is {short(c.predict_from_slot)}, expected a slot of the block"
    masked = c.mask_token_id is not None or c.kind != "eagle3"
    if masked and not is_whole(c.mask_token_id, 0, c.vocab_size - 1):
        return f"mask_token_id {short(c.mask_token_id)} is outside the vocabulary of {c.vocab_size}"
    return None


def _wrong_taps(c: DrafterConfig) -> str | None:
    ids = c.target_layer_ids
    if not isinstance(ids, tuple) or not all(is_whole(i, -1) for i in ids):
        return f"target_layer_ids is {short(ids)}, expected a list of integers from -1 on"
    if not ids or list(ids) != sorted(set(ids)):
        return f"target_layer_ids {short(list(ids))} must be a non-empty, strictly increasing list"
    depth = c.num_target_layers or MAX_LAYERS
    if ids[-1] >= depth:
        return f"target_layer_ids reach {ids[-1]} in a target with {depth} layers"
    if len(ids) * c.hidden_size > MAX_SIZE:
        return f"hidden_size {c.hidden_size} is too large for {len(ids)} tapped layers"
    return None


def _wrong_heads(c: DrafterConfig) -> str | None:
    if c.markov is not None:
        if not isinstance(c.markov.type, str):
            return f"markov head type is {short(c.markov.type)}, expected a name"
        if not is_whole(c.markov.rank):
            return f"markov rank is {short(c.markov.rank)}, expected a positive integer"
    if c.confidence is not None:
        if not isinstance(c.confidence.with_markov, bool):
            return f"confidence with_markov is {short(c.confidence.with_markov)}, expected a bool"
        if c.confidence.with_markov and not c.markov:
            return "the confidence head asks for a Markov head; none given"
    scale = c.confidence_temperatures
    if scale is not None and not (isinstance(scale, tuple) and all(map(is_positive, scale))):
        return f"confidence_temperatures is {short(scale)}, expected a list of positive numbers"
    if scale is not None and c.confidence is None:
        return "confidence_temperatures without a confidence head"
    drafts = c.block_size - c.predict_from_slot
    if scale is not None and len(scale) != drafts:
        return f"confidence_temperatures has {len(scale)} numbers for {drafts} drafts"
    return None


def _wrong_packing(c: DrafterConfig) -> str | None:
    packing = c.quantization
    if packing is None:
        return None
    if not isinstance(packing, Mapping) or set(packing) != {"group_size", "modules"}:
        return f"quantization is {short(packing)}, expected group_size and modules"
    group, modules = packing["group_size"], packing["modules"]
    if group not in GROUP_SIZES:
        return f"quantization group_size is {short(group)}, expected 32, 64 or 128"
    if not isinstance(modules, Mapping) or not all(
        b in (2, 3, 4, 5, 6, 8) for b in modules.values()
    ):
        return "quantization modules must map module paths to bits (2 to 6, or 8)"
    return None


def _wrong_masks(c: DrafterConfig) -> str | None:
    if len(c.layer_masks) not in (0, c.num_hidden_layers):
        return f"layer_masks has {len(c.layer_masks)} entries for {c.num_hidden_layers} layers"
    for mask in c.layer_masks:
        if mask.window is not None and not is_whole(mask.window):
            return f"layer_masks window is {short(mask.window)}, expected a positive integer"
        if not isinstance(mask.causal, bool):
            return f"layer_masks causal is {short(mask.causal)}, expected true or false"
    return None


_RULES = (
    _wrong_size,
    _wrong_value,
    _wrong_taps,
    _wrong_heads,
    _wrong_masks,
    _wrong_packing,
)
