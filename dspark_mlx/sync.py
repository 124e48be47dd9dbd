"""The only place where the host waits for the device, so that waits can be counted; a clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten


def settle(module: Any) -> None:
    """Evaluate every array of a module, private ones (rotary frequencies) too.

    What stays lazy is tied to the thread that made it, and could not run in another.
    """
    mx.eval([value for _, value in tree_flatten(module) if isinstance(value, mx.array)])


class Host:
    """Counts host synchronisations of one generation."""

    def __init__(self) -> None:
        self.syncs = 0

    def read(self, *arrays: mx.array | None, behind: Sequence[mx.array] = ()) -> list[Any]:
        """Evaluate everything in one synchronisation; return Python lists (or scalars).

        None stays None, so that optional outputs need no special case. `behind` is evaluated
        along with the rest and left on the device.
        """
        self.wait(*arrays, *behind)
        return [None if a is None else a.tolist() for a in arrays]

    def wait(self, *arrays: mx.array | None) -> None:
        """Evaluate in one synchronisation and leave the values on the device."""
        self.syncs += 1
        mx.eval([a for a in arrays if a is not None])


class Clock:
    """Wall-clock seconds since it was made, and since the last lap."""

    def __init__(self) -> None:
        self._begun = self._lap = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap (or the beginning)."""
        before, self._lap = self._lap, time.perf_counter()
        return self._lap - before

    def total(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._begun
