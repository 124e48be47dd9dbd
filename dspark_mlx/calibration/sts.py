"""Sequential temperature scaling: one temperature per position (method section 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .metrics import cumulative, ece
from .record import Sample, Scale, logits_of

# the paper names no grid: evenly spaced logarithms around 1, which is one of them
GRID = np.exp(np.linspace(np.log(0.25), np.log(4.0), 121))
LEAST = 20  # rounds below which a position keeps its confidences as they are
FURTHEST = 8.0  # of an offset, in logits


def fit_scales(samples: Sequence[Sample], drafts: int, offsets: bool = True) -> tuple[Scale, ...]:
    """One scale per draft, from fully verified rounds with confidences.

    Left to right, each temperature minimises the calibration error of the joint event "drafts
    1..k are all accepted" with those before it fixed, over all rounds that judged position k.
    Among equals the one nearest to 1 wins. A position with fewer than 20 rounds keeps 1.

    The paper has temperatures alone, which leave an even chance where it is: they cannot mend
    a head that is too sure or too shy throughout. With `offsets` each temperature comes with
    the offset that makes the mean prediction right; a position's order stays as it was.
    """
    scales: list[Scale] = []
    for k in range(drafts):
        some = [s for s in samples if s.confidence is not None and s.judged > k]
        scales.append(_fit(some, scales, k, offsets) if len(some) >= LEAST else Scale())
    return tuple(scales)


def _fit(samples: Sequence[Sample], before: Sequence[Scale], position: int, offset: bool) -> Scale:
    labels = np.array([s.accepted > position for s in samples], dtype=float)
    reached = cumulative(samples, position - 1, before) if position else np.ones(len(samples))
    scaled = logits_of(samples, position)[None] / GRID[:, None]  # [grid, samples]
    shifts = _shifts(scaled, reached, labels.mean()) if offset else np.zeros(len(GRID))
    predicted = reached / (1 + np.exp(-scaled - shifts[:, None]))
    errors = np.array([ece(row, labels) for row in predicted])
    best = np.flatnonzero(errors <= errors.min() + 1e-12)
    chosen = best[np.argmin(np.abs(np.log(GRID[best])))]
    return Scale(float(GRID[chosen]), float(shifts[chosen]))


def _shifts(scaled: np.ndarray, reached: np.ndarray, wanted: float) -> np.ndarray:
    """For each row, the offset at which the mean of reached x sigmoid(row + offset) is `wanted`."""
    low, high = np.full(len(scaled), -FURTHEST), np.full(len(scaled), FURTHEST)
    for _ in range(20):
        middle = (low + high) / 2
        mean = (reached / (1 + np.exp(-scaled - middle[:, None]))).mean(axis=1)
        low, high = np.where(mean < wanted, middle, low), np.where(mean < wanted, high, middle)
    return (low + high) / 2
