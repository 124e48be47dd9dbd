"""How far confidences can be trusted: ECE, AUROC, Brier, reliability (method section 10.3).

Predicted is the survival of the prefix, the product of the confidences up to a draft; observed
is whether the prefix was accepted. Only rounds that verify whatever they drafted say this
without bias, so only those of the cutoff `full` are given here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark_mlx.calibration import Scale

from .metrics import RoundRecord

BINS, FINE_BINS = 20, 1000
TINY = 1e-8

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bin:
    """One non-empty bin of a reliability diagram."""

    low: float
    high: float
    predicted: float
    observed: float
    count: int


@dataclass(frozen=True)
class Position:
    """The confidence metrics of one draft position, counted from 0. `auroc` None: one class."""

    position: int
    count: int
    ece: float
    auroc: float | None
    brier: float
    predicted: float
    observed: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class ConfidenceMetrics:
    """Per position, and count-weighted over positions (AUROC over those that have one)."""

    ece: float
    auroc: float | None
    brier: float
    predicted: float
    observed: float
    positions: tuple[Position, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def confidence_metrics(
    rounds: Iterable[RoundRecord], scales: Sequence[Scale] | None = None
) -> ConfidenceMetrics | None:
    """Judge the confidences of rounds; None when they have none.

    `scales` [k] mend the confidence logits by position first (section 7).
    """
    pairs: dict[int, list[tuple[float, bool]]] = {}
    for one in rounds:
        if one.confidence is None:
            continue
        survival = 1.0
        for k, value in enumerate(one.confidence[: one.proposal_len]):
            survival *= value if scales is None else mended(value, scales[k])
            pairs.setdefault(k, []).append((survival, one.accepted > k))
    if not pairs:
        return None
    positions = tuple(_position(k, pairs[k]) for k in sorted(pairs))
    ranked = [p for p in positions if p.auroc is not None]
    return ConfidenceMetrics(
        ece=_weighted(positions, "ece"),
        auroc=_weighted(ranked, "auroc") if ranked else None,
        brier=_weighted(positions, "brier"),
        predicted=_weighted(positions, "predicted"),
        observed=_weighted(positions, "observed"),
        positions=positions,
    )


def mended(confidence: float, scale: Scale) -> float:
    """sigmoid(logit(confidence) / temperature + offset)."""
    kept = min(max(confidence, 1e-300), 1.0 - 2.0**-53)
    logit = (math.log(kept) - math.log1p(-kept)) / scale.temperature + scale.offset
    if logit >= 0:
        return 1.0 / (1.0 + math.exp(-logit))
    power = math.exp(max(logit, -700.0))
    return power / (1.0 + power)


def _position(k: int, pairs: list[tuple[float, bool]]) -> Position:
    predicted = np.clip(np.array([p for p, _ in pairs], np.float64), TINY, 1.0 - TINY)
    observed = np.array([y for _, y in pairs], np.float64)
    bins = tuple(_bins(predicted, observed))
    return Position(
        position=k,
        count=len(pairs),
        ece=sum(b.count * abs(b.predicted - b.observed) for b in bins) / len(pairs),
        auroc=_auroc(predicted, observed),
        brier=float(np.mean((predicted - observed) ** 2)),
        predicted=float(predicted.mean()),
        observed=float(observed.mean()),
        bins=bins,
    )


def _bins(predicted: Floats, observed: Floats) -> Iterable[Bin]:
    place = np.clip(np.floor(predicted * BINS).astype(int), 0, BINS - 1)
    for b in np.unique(place):
        here = place == b
        yield Bin(
            low=int(b) / BINS,
            high=(int(b) + 1) / BINS,
            predicted=float(predicted[here].mean()),
            observed=float(observed[here].mean()),
            count=int(here.sum()),
        )


def _auroc(predicted: Floats, observed: Floats) -> float | None:
    """From a histogram of 1000 bins, ties within a bin counted half."""
    place = np.clip(np.floor(predicted * FINE_BINS).astype(int), 0, FINE_BINS - 1)
    positive = np.bincount(place, observed, FINE_BINS)
    negative = np.bincount(place, 1.0 - observed, FINE_BINS)
    total = positive.sum() * negative.sum()
    if total == 0:
        return None
    below = np.cumsum(negative) - negative
    return float((positive * (below + 0.5 * negative)).sum() / total)


def _weighted(positions: Sequence[Position], name: str) -> float:
    total = sum(p.count for p in positions)
    return float(sum(p.count * getattr(p, name) for p in positions) / total)
