"""The paper's objective for one request: committed tokens per second of the round at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .acceptance import Acceptance
from .base import Outcome, Plan, Setting


@dataclass(frozen=True)
class Paper:
    """Algorithm 1 of the paper with one request: extend while the round's rate grows.

    Lossless at any temperature: whether draft k is admitted compares rates up to k, which use
    confidences 1..k, all computed before draft k is drawn; it never looks past a failure.
    """

    needs_confidence: ClassVar[bool] = False
    needs_costs: ClassVar[bool] = True
    causal: ClassVar[bool] = True

    def start(self, setting: Setting) -> RateRun:
        """The state of a new generation."""
        return RateRun(setting, "paper", early_stop=True)


@dataclass(frozen=True)
class Hindsight:
    """The length with the best rate of all, judged after the whole block is drawn.

    NOT lossless when sampling: a confidence computed after draft k can decide that k is not
    verified (the counterexample of the paper's appendix). It is refused there, unless no
    confidence depends on a draft. Greedy output does not depend on any length.
    """

    needs_confidence: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = True
    causal: ClassVar[bool] = False

    def start(self, setting: Setting) -> RateRun:
        """The state of a new generation."""
        return RateRun(setting, "hindsight", early_stop=False)


class RateRun:
    """Both rules in one generation. Without a confidence head, survival is the typical one."""

    def __init__(self, setting: Setting, reason: str, early_stop: bool) -> None:
        assert setting.costs is not None
        self._costs, self._confident = setting.costs, setting.confident
        self._acceptance = Acceptance(setting.drafts, setting.confident, setting.calibration)
        self._reason, self._early_stop = reason, early_stop
        self._context = 0

    def plan(self, drafts: int, context: int) -> Plan:
        """Draw the block and look at its confidences; without any, decide from past rounds."""
        self._context = context
        if self._confident:
            return Plan(drafts, drafts, look=True, reason=self._reason)
        # one draft at least, or nothing would ever be learned
        count = max(self._best(self._acceptance.typical[:drafts], drafts), min(drafts, 1))
        return Plan(count, count, reason=self._reason)

    def cut(self, confidence: Sequence[float]) -> int:
        """The length that the rule stops at."""
        drawn = len(confidence)
        return self._best(self._acceptance.survival(confidence, drawn), drawn)

    def observe(self, outcome: Outcome) -> None:
        """Correct the confidences, or count outcomes."""
        survival = self._acceptance.survival(outcome.confidence, outcome.drawn)
        self._acceptance.observe(outcome.confidence, survival, outcome.judged, outcome.accepted)
        prices = self._costs.at(outcome.context)
        prices.observe(outcome.drawn, outcome.verified, outcome.looked, outcome.seconds)

    def _best(self, survival: Sequence[float], drawn: int) -> int:
        prices = self._costs.at(self._context)
        tokens, length, best = 1.0, 0, 1.0 / prices.round(drawn, 0)
        for k, alive in enumerate(survival, start=1):
            tokens += alive
            rate = tokens / prices.round(drawn, k)
            if rate > best:
                best, length = rate, k
            elif self._early_stop:
                break
        return length
