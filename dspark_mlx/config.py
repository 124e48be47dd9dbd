"""What a drafter is: every convention stated, so that loading never guesses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any

from .errors import CheckpointError

FORMAT = "dspark-mlx"
FORMAT_VERSION = 1
MAX_SIZE = 2**28  # mlx keeps dimensions as int32; some are sums of several sizes
MAX_LAYERS = 1024
GROUP_SIZES = (32, 64, 128)  # of quantization, those that mlx has


@dataclass(frozen=True)
class MarkovConfig:
    """The sequential head: `type` names an entry of `heads.HEADS`, `rank` is its width r."""

    type: str
    rank: int


@dataclass(frozen=True)
class ConfidenceConfig:
    """The confidence head; `with_markov` adds W1[previous token] to its features."""

    with_markov: bool


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding; `interleaved` pairs neighbours, else halves.

    `partial` below 1 is the "proportional" form: frequencies run over the whole head, and only
    that share of the pairs, the fastest, is rotated.
    """

    theta: float
    interleaved: bool = False
    partial: float = 1.0


@dataclass(frozen=True)
class DrafterConfig:
    """A drafter's shape and conventions, as written to a converted folder's config.json.

    `target_layer_ids` always means "output of decoder layer i" (-1: the embedding's output),
    whatever the source's own convention was. `embeddings` and `head` are "own" or "target".
    `embedding_scale` multiplies embedding rows; `logit_softcap` c bends base logits to
    c tanh(x / c); `values_are_keys`: no value projection, values are the raw keys.
    """

    kind: str
    backbone: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    vocab_size: int
    rope: RopeConfig
    block_size: int
    mask_token_id: int | None  # None: this kind drafts without masks
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    max_position_embeddings: int | None = None
    embeddings: str = "own"
    head: str = "own"
    predict_from_slot: int = 0
    block_mask: str = "bidirectional"
    tap_convention: str = "layer_output"
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    values_are_keys: bool = False
    markov: MarkovConfig | None = None
    confidence: ConfidenceConfig | None = None
    confidence_temperatures: tuple[float, ...] | None = None
    dtype: str = "bfloat16"
    quantization: Mapping[str, Any] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form that `from_dict` reads back to an equal config."""
        body = dataclasses.asdict(self)
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **body}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "config.json") -> DrafterConfig:
        """Read `to_dict`'s form. Raises CheckpointError naming missing and unknown keys."""
        body = {k: v for k, v in data.items() if k not in ("format", "format_version")}
        if data.get("format") != FORMAT:
            raise CheckpointError(f'{where}: not a {FORMAT} config (no "format": "{FORMAT}")')
        if data.get("format_version") != FORMAT_VERSION:
            raise CheckpointError(
                f"{where}: format_version {data.get('format_version')!r} found, this version "
                f"reads {FORMAT_VERSION}; convert the drafter again"
            )
        _check_keys(cls, body, where)
        nested = {"markov": MarkovConfig, "confidence": ConfidenceConfig, "rope": RopeConfig}
        for key, kind in nested.items():
            if body.get(key) is not None:
                _check_keys(kind, body[key], f"{where}: {key}")
                body[key] = kind(**body[key])
        for key in ("target_layer_ids", "confidence_temperatures"):
            if isinstance(body.get(key), list):
                body[key] = tuple(body[key])
        return cls(**body).checked(where)

    def checked(self, where: str) -> DrafterConfig:
        """Return self; raise CheckpointError for the first value that cannot be."""
        for rule in (_wrong_size, _wrong_value, _wrong_taps, _wrong_heads, _wrong_packing):
            if problem := rule(self):
                raise CheckpointError(f"{where}: {problem}")
        return self


_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "block_size",
    "num_target_layers",
)
_CHOICES = {
    "embeddings": ("own", "target"),
    "head": ("own", "target"),
    "block_mask": ("bidirectional",),
    "tap_convention": ("layer_output",),
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
    for name in ("num_hidden_layers", "num_target_layers", "block_size"):
        if getattr(c, name) > MAX_LAYERS:
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
    "rope": (lambda v: isinstance(v, RopeConfig), "an object"),
    "rope.theta": (is_positive, "a positive number"),
    "rope.interleaved": (lambda v: isinstance(v, bool), "true or false"),
    "rope.partial": (lambda v: is_positive(v) and v <= 1, "a share of the head"),
    "embedding_scale": (is_positive, "a positive number"),
    "logit_softcap": (lambda v: v is None or is_positive(v), "a positive number"),
    "values_are_keys": (lambda v: isinstance(v, bool), "true or false"),
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
            return f"{name} is {short(value)}, known: {', '.join(known)}"
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
    if ids[-1] >= c.num_target_layers:
        return f"target_layer_ids reach {ids[-1]} in a target with {c.num_target_layers} layers"
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


def _check_keys(kind: Any, data: Any, where: str) -> None:
    if not isinstance(data, Mapping):
        raise CheckpointError(f"{where} is {short(data)}, expected an object")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(data) - set(fields))
    missing = sorted(
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
        and name not in data
    )
    if unknown or missing:
        found = [f"missing {', '.join(missing)}"] if missing else []
        found += [f"unknown {', '.join(unknown)}"] if unknown else []
        raise CheckpointError(f"{where}: {'; '.join(found)}")
