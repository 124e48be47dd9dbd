"""What calibration is fitted to, and what it comes to: plain records, JSON-ready."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from dspark_mlx.errors import CheckpointError

EDGE = 1e-9  # how near to 0 or 1 a confidence may come before its logit is taken


@dataclass(frozen=True)
class Sample:
    """One fully verified round: the confidence of every draft, and how many were accepted.

    `judged` is the effective proposal length (cut after an accepted stop token). `confidence`
    is None for a drafter without a confidence head.
    """

    judged: int
    accepted: int
    confidence: tuple[float, ...] | None = None

    def to_list(self) -> list[Any]:
        """A compact JSON form."""
        return [self.judged, self.accepted, self.confidence]

    @classmethod
    def from_list(cls, body: Any, where: str) -> Sample:
        """Read `to_list`'s form; CheckpointError when it is anything else."""
        try:
            judged, accepted, confidence = body
            numbers = None if confidence is None else tuple(map(float, confidence))
            if not 0 <= int(accepted) <= int(judged) <= len(numbers or range(judged)):
                raise ValueError(f"{accepted} of {judged} accepted")
            return cls(int(judged), int(accepted), numbers)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: no record of a round ({error})") from error


@dataclass(frozen=True)
class Scale:
    """How one position's confidence logits z are mended: z / temperature + offset."""

    temperature: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.temperature < math.inf and math.isfinite(self.offset)):
            raise ValueError(f"temperature {self.temperature}, offset {self.offset}")


@dataclass(frozen=True)
class Calibration:
    """What was fitted for one pair at one decoding temperature.

    `scales`: one per draft, None without a confidence head. `acceptance[k]`: share of rounds
    that accepted draft k + 1, of those that accepted all drafts before it.
    """

    temperature: float
    acceptance: tuple[float, ...]
    rounds: int
    scales: tuple[Scale, ...] | None = None

    @property
    def accept_len(self) -> float:
        """Committed tokens per fully verified round, the bonus included."""
        return 1.0 + float(np.cumprod(self.acceptance).sum())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, body: Any, where: str) -> Calibration:
        """Read `to_dict`'s form; CheckpointError when it is anything else."""
        try:
            if set(body) != {f.name for f in fields(cls)}:
                raise ValueError("other keys than a calibration has")
            scales = body["scales"]
            return cls(
                temperature=float(body["temperature"]),
                acceptance=tuple(map(float, body["acceptance"])),
                rounds=int(body["rounds"]),
                scales=None if scales is None else tuple(Scale(**scale) for scale in scales),
            )
        except (TypeError, ValueError, KeyError) as error:
            raise CheckpointError(f"{where} is damaged ({error}); delete it") from error


def acceptance_of(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Conditional acceptance by position, as far as any round got."""
    rates = []
    for k in range(max((s.judged for s in samples), default=0)):
        reached = [s.accepted > k for s in samples if s.judged > k and s.accepted >= k]
        if not reached:
            break
        rates.append(sum(reached) / len(reached))
    return tuple(rates)


def logit(probability: float) -> float:
    """The inverse of the sigmoid, kept finite."""
    p = min(max(probability, EDGE), 1.0 - EDGE)
    return math.log(p / (1.0 - p))


def logits_of(samples: Sequence[Sample], position: int) -> np.ndarray:
    """Confidence logits of one position (from 0) over samples that have it."""
    return logits(np.array([s.confidence[position] for s in samples if s.confidence is not None]))


def logits(probabilities: np.ndarray) -> np.ndarray:
    """`logit` of an array."""
    p = np.clip(probabilities, EDGE, 1.0 - EDGE)
    return np.log(p / (1.0 - p))
