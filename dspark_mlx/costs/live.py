"""Prices of rounds while generating: a measured curve, corrected by the rounds themselves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from .curve import CostCurve, bucket_of

RECENT = 31  # rounds that a correction is the median of: one stalled round moves nothing
PLAIN = -1  # the kind of round that drafts nothing; the others go by their verified length


class _Recent:
    """The median of the latest numbers."""

    def __init__(self) -> None:
        self.value = 0.0
        self._numbers: deque[float] = deque(maxlen=RECENT)

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: float) -> None:
        self._numbers.append(number)
        self.value = sorted(self._numbers)[len(self._numbers) // 2]


class Prices:
    """The curve of one context bucket, as real rounds correct it.

    The logarithm of real over predicted seconds is taken as a sum of two parts: what the curve
    has wrong at a verified length (its own rounds tell, or those of the nearest length), and a
    drift of the whole machine, which rounds of any length tell of all.
    """

    def __init__(self, curve: CostCurve, frozen: bool) -> None:
        self.curve, self.frozen = curve, frozen
        self._each: dict[int, _Recent] = {}
        self._drift = _Recent()

    @property
    def plain(self) -> float:
        """Seconds of a round without drafts."""
        return self.round(0, 0)

    @property
    def plain_is_timed(self) -> bool:
        """Whether a plain step was ever timed here."""
        return PLAIN in self._each

    def round(self, drawn: int, verified: int, looked: bool = False) -> float:
        """Seconds of a round that draws and verifies so many drafts (0: a plain step)."""
        base = self.curve.round(drawn, verified, looked)
        if not self._each:
            return base
        return base * math.exp(self._own(verified if drawn else PLAIN) + self._drift.value)

    def observe(self, drawn: int, verified: int, looked: bool, seconds: float) -> None:
        """Learn from one real round. Frozen prices learn nothing."""
        if self.frozen:
            return
        told = math.log(seconds / self.curve.round(drawn, verified, looked))
        kind = verified if drawn else PLAIN
        if kind in self._each:
            self._drift.add(told - self._each[kind].value)
        self._each.setdefault(kind, _Recent()).add(told - self._drift.value)

    def _own(self, kind: int) -> float:
        mine = self._each.get(kind)
        if mine is None:
            mine = self._each[min(self._each, key=lambda other: (abs(other - kind), other))]
        return mine.value


class Costs:
    """Prices by context length. A bucket without a curve of its own starts from the nearest.

    `frozen`: prices are the measured curves and stay so, for runs that must repeat.
    """

    def __init__(self, curves: Mapping[int, CostCurve], frozen: bool = False) -> None:
        if not curves:
            raise ValueError("no cost curve")
        self._curves, self.frozen = dict(curves), frozen
        self._prices: dict[int, Prices] = {}

    def at(self, context: int) -> Prices:
        """Prices at so many cached positions."""
        bucket = bucket_of(context)
        if bucket not in self._prices:
            nearest = min(self._curves, key=lambda low: (abs(low - bucket), low))
            self._prices[bucket] = Prices(self._curves[nearest], self.frozen)
        return self._prices[bucket]
