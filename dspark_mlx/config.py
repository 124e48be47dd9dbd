"""What a drafter is: every convention stated, so that loading never guesses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    """Rotary embedding over the whole head; `interleaved` pairs neighbours, else halves."""

    theta: float
    interleaved: bool = False


@dataclass(frozen=True)
class DrafterConfig:
    """A drafter's shape and conventions, as written to a converted folder's config.json.

    `target_layer_ids` always means "output of decoder layer i" (-1: the embedding's output),
    whatever the source's own convention was. `embeddings` is "own" or "target".
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
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    max_position_embeddings: int | None = None
    embeddings: str = "own"
    head: str = "own"
    predict_from_slot: int = 0
    block_mask: str = "bidirectional"
    tap_convention: str = "layer_output"
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
            if body.get(key) is not None:
                body[key] = tuple(body[key])
        return cls(**body).checked(where)

    def checked(self, where: str) -> DrafterConfig:
        """Return self; raise CheckpointError for the first value that cannot be."""
        for name in _POSITIVE:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise CheckpointError(f"{where}: {name} is {value!r}, expected a positive integer")
        if not self.target_layer_ids or list(self.target_layer_ids) != sorted(
            set(self.target_layer_ids)
        ):
            raise CheckpointError(
                f"{where}: target_layer_ids {list(self.target_layer_ids)} must be a non-empty, "
                "strictly increasing list"
            )
        if self.target_layer_ids[0] < -1:
            raise CheckpointError(f"{where}: target_layer_ids start below -1")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise CheckpointError(
                f"{where}: mask_token_id {self.mask_token_id} is outside the vocabulary of "
                f"{self.vocab_size}"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"{where}: {self.num_attention_heads} attention heads cannot be shared by "
                f"{self.num_key_value_heads} key/value heads"
            )
        if self.confidence and self.confidence.with_markov and not self.markov:
            raise CheckpointError(
                f"{where}: the confidence head asks for a Markov head; none given"
            )
        return self


_POSITIVE = (
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


def _check_keys(kind: Any, data: Mapping[str, Any], where: str) -> None:
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
