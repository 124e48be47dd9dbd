"""Features of settled positions that the drafter has not been given yet."""

from __future__ import annotations

import mlx.core as mx

MOST = 64  # rows; one pass over so many reads the drafter's weights once, as over a single row


class Waiting:
    """While a policy stands down, a plain step costs the drafter nothing: its features wait here.

    They go in with the next block, or when `full`, so that memory stays bounded.
    """

    def __init__(self) -> None:
        self._features: list[list[mx.array]] = []  # per step, one [n, d] per tapped layer
        self._following: list[int] = []

    def __len__(self) -> int:
        """Positions that wait."""
        return len(self._following)

    @property
    def full(self) -> bool:
        """Whether they should go in now."""
        return len(self) >= MOST

    def add(self, features: list[mx.array], following: list[int]) -> None:
        """Keep [n, d] per tapped layer, and the n tokens that follow those positions."""
        self._features.append(features)
        self._following += following

    def joined(self) -> tuple[list[mx.array], mx.array]:
        """Everything that waits, in the form of `Drafter.extend`."""
        steps = self._features
        rows = [mx.concatenate(list(layer)) for layer in zip(*steps, strict=True)]
        return (steps[0] if len(steps) == 1 else rows), mx.array(self._following)

    def cut(self, count: int) -> None:
        """Keep only the first `count` positions."""
        if count >= len(self):
            return
        rows, _ = self.joined()
        following = self._following[:count]
        self._features, self._following = [], []
        if count:
            self.add([layer[:count] for layer in rows], following)

    def arrays(self) -> list[mx.array]:
        """Everything that waits on the device."""
        return [rows for step in self._features for rows in step]
