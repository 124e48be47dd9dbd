"""How good confidences are: ECE, AUROC and Brier score, defined as DeepSpec measures them.

Everything is about the cumulative event "drafts 1..k are all accepted", predicted by the
product of the first k confidences, over all rounds that judged position k (section 10.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .record import Sample, Scale, logits

BINS = 20
FINE_BINS = 1000  # of the histogram that AUROC is read from
EDGE = 1e-8


@dataclass(frozen=True)
class PositionMetrics:
    """One position's figures over `count` rounds; `auroc` is None where one label is missing.

    `floor` is the ECE that this many rounds would show on average if every prediction were
    exactly right: what is left below it cannot be told from noise.
    """

    count: int
    ece: float
    auroc: float | None
    brier: float
    mean_prediction: float
    mean_label: float
    floor: float


def position_metrics(
    samples: Sequence[Sample], scales: Sequence[Scale] | None = None
) -> list[PositionMetrics]:
    """Figures per position of samples with confidences, mended by `scales` if given."""
    deepest = max((s.judged for s in samples if s.confidence), default=0)
    found = []
    for k in range(deepest):
        some = [s for s in samples if s.confidence is not None and s.judged > k]
        predicted = cumulative(some, k, scales)
        labels = np.array([s.accepted > k for s in some], dtype=float)
        found.append(_metrics(predicted, labels))
    return found


def cumulative(
    samples: Sequence[Sample], position: int, scales: Sequence[Scale] | None = None
) -> np.ndarray:
    """Product of the confidences up to `position` (from 0), one number per sample, float64."""
    c = np.array([(s.confidence or ())[: position + 1] for s in samples], dtype=np.float64)
    if scales is not None:
        divisors = np.array([s.temperature for s in scales[: position + 1]])
        shifts = np.array([s.offset for s in scales[: position + 1]])
        c = 1 / (1 + np.exp(-logits(c) / divisors - shifts))
    return c.prod(axis=1)


def bins_of(predicted: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The bin of each prediction: equal widths over 0..1."""
    return np.clip((np.clip(predicted, EDGE, 1 - EDGE) * bins).astype(int), 0, bins - 1)


def ece(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Expected calibration error: |mean prediction - mean label| per bin, weighted by count."""
    if not predicted.size:
        return 0.0
    gaps = np.bincount(bins_of(predicted), np.clip(predicted, EDGE, 1 - EDGE) - labels, BINS)
    return float(np.abs(gaps).sum() / predicted.size)


def auroc(predicted: np.ndarray, labels: np.ndarray) -> float | None:
    """Area under the ROC curve, from a histogram of 1000 bins."""
    bins = bins_of(predicted, FINE_BINS)
    good = np.bincount(bins, labels, FINE_BINS)
    bad = np.bincount(bins, 1 - labels, FINE_BINS)
    pairs = good.sum() * bad.sum()
    if not pairs:
        return None
    below = np.cumsum(bad) - bad
    return float((good * (below + bad / 2)).sum() / pairs)


def floor_of(predicted: np.ndarray, repeats: int = 200) -> float:
    """Mean ECE of labels drawn from the predictions themselves (fixed seed)."""
    draws = np.random.default_rng(0).random((repeats, predicted.size)) < predicted
    return float(np.mean([ece(predicted, row.astype(float)) for row in draws]))


def weighted(values: Iterable[tuple[int, float | None]]) -> float | None:
    """Mean over positions weighted by their counts, of those that are defined."""
    known = [(n, v) for n, v in values if v is not None]
    total = sum(n for n, _ in known)
    return sum(n * v for n, v in known) / total if total else None


def _metrics(predicted: np.ndarray, labels: np.ndarray) -> PositionMetrics:
    clipped = np.clip(predicted, EDGE, 1 - EDGE)
    return PositionMetrics(
        count=predicted.size,
        ece=ece(predicted, labels),
        auroc=auroc(predicted, labels),
        brier=float(np.mean((clipped - labels) ** 2)),
        mean_prediction=float(clipped.mean()),
        mean_label=float(labels.mean()),
        floor=floor_of(predicted),
    )
