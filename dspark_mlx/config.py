"""What a drafter is: every convention stated, so that loading never guesses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any

from .config_rules import first_problem
from .errors import CheckpointError

FORMAT = "dspark-mlx"
FORMAT_VERSION = 1


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
    that share of the pairs, the fastest, is rotated. `rotary_dims`: only so many leading
    dimensions of a head are rotated, by frequencies of their own. `scaling` holds the parameters
    of another rope type (YaRN) where the drafter was trained with it.
    """

    theta: float
    interleaved: bool = False
    partial: float = 1.0
    scaling: Mapping[str, Any] | None = None
    rotary_dims: int | None = None

    def parameters(self) -> dict[str, Any]:
        """In the form of transformers' rope_parameters."""
        if self.partial < 1:
            return {"rope_type": "proportional", "partial_rotary_factor": self.partial}
        return dict(self.scaling or {"rope_type": "default"})


@dataclass(frozen=True)
class LayerMask:
    """What a layer's block rows see: context within `window` positions (None: all of it), and
    of their own block every slot, or with `causal` the slots up to their own."""

    window: int | None = None
    causal: bool = False


@dataclass(frozen=True)
class DrafterConfig:
    """A drafter's shape and conventions, as written to a converted folder's config.json.

    `target_layer_ids` always means "output of decoder layer i" (-1: the embedding's output),
    whatever the source's own convention was. `embeddings` and `head` are "own" or "target".
    `embedding_scale` multiplies embedding rows, `output_multiplier` base logits; `logit_softcap`
    c bends base logits to c tanh(x / c); `values_are_keys`: no value projection, values are the
    raw keys. `layer_masks`: one per layer. `attention_sinks`: a stored logit per head that takes
    part in the softmax. `attention_gate`: the query projection also gives a gate per output.
    `draft_vocab_size`: the head has so many rows, and a stored `draft_ids`
    says which target token each row means. Of Eagle3 only: `feature_norm` is the norm that taps
    pass before they are mixed, over all of them ("joint") or over each ("each");
    `norm_before_residual`: the residual of the layer is the normed hidden row;
    `norm_output`: what a step hands to the next is normed.
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
    num_target_layers: int | None  # None: the source did not say
    max_position_embeddings: int | None = None
    embeddings: str = "own"
    head: str = "own"
    predict_from_slot: int = 0
    layer_masks: tuple[LayerMask, ...] = ()
    attention_sinks: bool = False
    attention_gate: bool = False
    tap_convention: str = "layer_output"
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    logit_softcap: float | None = None
    draft_vocab_size: int | None = None
    values_are_keys: bool = False
    feature_norm: str | None = None
    norm_before_residual: bool = False
    norm_output: bool = False
    markov: MarkovConfig | None = None
    confidence: ConfidenceConfig | None = None
    confidence_temperatures: tuple[float, ...] | None = None
    dtype: str = "bfloat16"
    quantization: Mapping[str, Any] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def head_rows(self) -> int:
        """Rows of the drafter's head and of its Markov output table."""
        return self.draft_vocab_size or self.vocab_size

    def mask_of(self, layer: int) -> LayerMask:
        """What layer `layer` sees."""
        return self.layer_masks[layer] if self.layer_masks else LayerMask()

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
        for key in ("target_layer_ids", "confidence_temperatures", "layer_masks"):
            if isinstance(body.get(key), list):
                body[key] = tuple(body[key])
        body["layer_masks"] = _read_masks(body.get("layer_masks", ()), where)
        return cls(**body).checked(where)

    def checked(self, where: str) -> DrafterConfig:
        """Return self; raise CheckpointError for the first value that cannot be."""
        if problem := first_problem(self):
            raise CheckpointError(f"{where}: {problem}")
        return self


def _read_masks(masks: Any, where: str) -> tuple[LayerMask, ...]:
    if not isinstance(masks, tuple):
        raise CheckpointError(f"{where}: layer_masks is {short(masks)}, expected a list of objects")
    for mask in masks:
        _check_keys(LayerMask, mask, f"{where}: layer_masks")
    return tuple(LayerMask(**mask) for mask in masks)


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
