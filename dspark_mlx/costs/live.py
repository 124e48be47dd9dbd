"""Prices of rounds while generating: a measured curve, corrected by the rounds themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from .curve import CostCurve, bucket_of

MEMORY = 1 / 16  # weight of the newest round in a correction
SHARED = 4.0  # rounds of its own after which a width believes itself as much as all widths
SURPRISE = 0.25  # largest step of a logarithm that one round may argue for


@dataclass
class _Correction:
    """Logarithm of real over predicted seconds, and how many rounds told so."""

    value: float = 0.0
    rounds: int = 0

    def learn(self, told: float) -> None:
        self.rounds += 1
        step = max(-SURPRISE, min(SURPRISE, told - self.value))
        self.value += step * max(MEMORY, 1 / (self.rounds + 1))


@dataclass
class Prices:
    """The curve of one context bucket, with a correction per verified length.

    A drift of the whole machine moves every length alike (`_all`); an error of the curve at
    one length is learned from rounds of that length.
    """

    curve: CostCurve
    frozen: bool
    _all: _Correction = field(default_factory=_Correction)
    _each: dict[int, _Correction] = field(default_factory=dict)

    @property
    def plain(self) -> float:
        """Seconds of a round without drafts."""
        return self.round(0, 0)

    def round(self, drawn: int, verified: int, looked: bool = False) -> float:
        """Seconds of a round that draws and verifies so many drafts (0: a plain step)."""
        base = self.curve.round(drawn, verified, looked)
        return base if self.frozen else base * self._factor(self._key(drawn, verified))

    def seen(self, drawn: int, verified: int) -> int:
        """Rounds of this kind that were timed."""
        mine = self._each.get(self._key(drawn, verified))
        return mine.rounds if mine else 0

    def observe(self, drawn: int, verified: int, looked: bool, seconds: float) -> None:
        """Learn from one real round. Frozen prices learn nothing."""
        if self.frozen:
            return
        told = math.log(seconds / self.curve.round(drawn, verified, looked))
        self._all.learn(told)
        self._each.setdefault(self._key(drawn, verified), _Correction()).learn(told)

    def _factor(self, key: int) -> float:
        mine = self._each.get(key)
        if mine is None:
            return math.exp(self._all.value)
        own = mine.rounds / (mine.rounds + SHARED)
        return math.exp(own * mine.value + (1 - own) * self._all.value)

    @staticmethod
    def _key(drawn: int, verified: int) -> int:
        return verified if drawn else -1  # a plain step drafts nothing


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
