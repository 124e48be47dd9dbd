"""Sequential temperature scaling: one temperature per position (method section 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .metrics import cumulative, ece
from .record import Sample, logits_of

# the paper names no grid: evenly spaced logarithms around 1, which is one of them
GRID = np.exp(np.linspace(np.log(0.25), np.log(4.0), 161))
LEAST = 20  # rounds below which a position keeps temperature 1


def fit_temperatures(samples: Sequence[Sample], drafts: int) -> tuple[float, ...]:
    """One temperature per draft, from fully verified rounds with confidences.

    Left to right, each minimises the calibration error of the joint event "drafts 1..k are all
    accepted" with those before it fixed, over all rounds that judged position k. Among equals
    the one nearest to 1 wins. A position with fewer than 20 rounds keeps 1.
    """
    temperatures: list[float] = []
    for k in range(drafts):
        some = [s for s in samples if s.confidence is not None and s.judged > k]
        temperatures.append(_fit(some, temperatures, k) if len(some) >= LEAST else 1.0)
    return tuple(temperatures)


def _fit(samples: Sequence[Sample], before: Sequence[float], position: int) -> float:
    labels = np.array([s.accepted > position for s in samples], dtype=float)
    reached = cumulative(samples, position - 1, before) if position else np.ones(len(samples))
    z = logits_of(samples, position)
    errors = np.array([ece(reached / (1 + np.exp(-z / t)), labels) for t in GRID])
    best = GRID[errors <= errors.min() + 1e-12]
    return float(best[np.argmin(np.abs(np.log(best)))])
