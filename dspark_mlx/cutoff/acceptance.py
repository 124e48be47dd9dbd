"""How likely drafts are to be accepted: from calibrated confidences, or from past rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from dspark_mlx.calibration import Calibration, Scale
from dspark_mlx.calibration.record import logit

FIRST = 0.6  # prior acceptance of a draft that nothing is known of
FITTED = 0.2  # prior spread of corrections where a calibration was fitted, as against 1
FORGET = 1 - 1 / 512  # of corrections, per draft judged
MEMORY = 256.0  # rounds that averages look back while the text stays as it is
RECENT = 16.0  # and those that show whether it changed
SURPRISE = 3.0  # standard errors between the two that count as a change
TRUST = 3.0  # rounds of evidence that a prior is worth,
FITTED_TRUST = 16.0  # and one that was measured


class Corrector:
    """Confidence logits to probabilities: fitted scales, then what past rounds teach.

    An online logistic regression of "accepted, given that all before it were" on the logit,
    with a slope and an offset for all positions and an offset for each: each coefficient moves
    by its own gradient over its accumulated curvature, from a prior at "right as it is".
    """

    def __init__(self, drafts: int, calibration: Calibration | None) -> None:
        fitted = calibration.scales if calibration else None
        self._scales = [*(fitted or ())[:drafts]]
        self._scales += [Scale()] * (drafts - len(self._scales))
        spread = FITTED if fitted else 1.0
        self._slope, self._offset, self._own = 1.0, 0.0, [0.0] * drafts
        # precision of the priors: variances of 0.25, 1 and 0.25, less where fitted
        weight = 1 / spread**2
        self._h_slope, self._h_offset = 4.0 * weight, weight
        self._h_own = [4.0 * weight] * drafts

    def probability(self, position: int, confidence: float) -> float:
        """Calibrated probability of one draft (position from 0)."""
        z = self._logit(position, confidence)
        return _sigmoid(self._slope * z + self._offset + self._own[position])

    def _logit(self, position: int, confidence: float) -> float:
        scale = self._scales[position]
        return logit(confidence) / scale.temperature + scale.offset

    def learn(self, position: int, confidence: float, accepted: bool) -> None:
        """One draft whose prefix was accepted was itself judged."""
        z = self._logit(position, confidence)
        p = _sigmoid(self._slope * z + self._offset + self._own[position])
        error, curve = accepted - p, max(p * (1 - p), 0.01)
        self._h_slope = self._h_slope * FORGET + curve * z * z
        self._h_offset = self._h_offset * FORGET + curve
        self._h_own[position] = self._h_own[position] * FORGET + curve
        self._slope = min(max(self._slope + error * z / (3 * self._h_slope), 0.1), 4.0)
        self._offset += error / (3 * self._h_offset)
        self._own[position] += error / (3 * self._h_own[position])


class Averages:
    """Decayed counts per position: rounds that reached draft k, and that passed it."""

    def __init__(self, drafts: int, memory: float) -> None:
        self._keep = 1 - 1 / memory
        self.reached, self.passed = [0.0] * drafts, [0.0] * drafts

    def add(self, position: int, reached: float, passed: float) -> None:
        """One round's draft: probabilities, or outcomes."""
        self.reached[position] = self.reached[position] * self._keep + reached
        self.passed[position] = self.passed[position] * self._keep + passed

    def take(self, other: Averages) -> None:
        """The other's counts, where it has some."""
        for k, reached in enumerate(other.reached):
            if reached > 1:
                self.reached[k], self.passed[k] = reached, other.passed[k]


class Acceptance:
    """Survival of drafts, in this round and in a typical one.

    With confidences, this round's survival is the product of corrected confidences, and the
    typical one the average of those. Without, both are counts of past outcomes. A position that
    was never tried inherits from the one before it. Averages look far back until the recent
    rounds contradict them: then only those count.
    """

    def __init__(self, drafts: int, confident: bool, calibration: Calibration | None) -> None:
        self.drafts = drafts
        self._corrector = Corrector(drafts, calibration) if confident else None
        known = calibration.acceptance[:drafts] if calibration else ()
        self._prior: list[float | None] = [*known, *[None] * (drafts - len(known))]
        self._long, self._recent = Averages(drafts, MEMORY), Averages(drafts, RECENT)
        self._drift, self._noise, self._rounds = 0.0, 0.0, 0
        self._refresh()

    def survival(self, confidence: Sequence[float] | None, drawn: int) -> list[float]:
        """P(drafts 1..k are all accepted) for k = 1..drawn, in this round."""
        if self._corrector is None or confidence is None:
            return self.typical[:drawn]
        each = (self._corrector.probability(k, c) for k, c in enumerate(confidence[:drawn]))
        return list(accumulate(each, mul))

    def extended(self, survival: list[float]) -> list[float]:
        """A round's survival with the drafts that were not drawn filled in as typical."""
        known = len(survival)
        last = survival[-1] if survival else 1.0
        return survival + list(accumulate(self.ratios[known:], mul, initial=last))[1:]

    def observe(
        self, confidence: Sequence[float] | None, survival: list[float], judged: int, accepted: int
    ) -> None:
        """Learn from a round: what was predicted of its drafts, and what the target said."""
        told = range(min(accepted + 1, judged))
        if self._corrector is not None and confidence is not None:
            for k in told:
                self._corrector.learn(k, confidence[k], accepted > k)
            found = [(k, survival[k - 1] if k else 1.0, s) for k, s in enumerate(survival)]
            surprise = sum(survival) - sum(self.typical[: len(survival)])
        else:
            found = [(k, 1.0, float(accepted > k)) for k in told]
            surprise = accepted - sum(self.typical[:judged])
        for item in found:
            self._long.add(*item)
            self._recent.add(*item)
        if self._changed(surprise):
            self._long.take(self._recent)
            self._drift = 0.0
        self._refresh()

    @property
    def error(self) -> float:
        """Standard error of the tokens of a typical round."""
        return (self._noise / max(self._long.reached[0], 1.0)) ** 0.5

    def _changed(self, surprise: float) -> bool:
        """Whether recent rounds lie off the typical one by more than their noise."""
        self._rounds += 1
        self._drift += (surprise - self._drift) / min(self._rounds, RECENT)
        self._noise += (surprise**2 - self._noise) / min(self._rounds, MEMORY)
        error = (self._noise / (2 * RECENT - 1)) ** 0.5
        return self._rounds >= RECENT and abs(self._drift) > SURPRISE * error

    def _refresh(self) -> None:
        ratios, before = [], FIRST
        for prior, reached, passed in zip(
            self._prior, self._long.reached, self._long.passed, strict=True
        ):
            guess, trust = (before, TRUST) if prior is None else (prior, FITTED_TRUST)
            before = (passed + trust * guess) / (reached + trust)
            ratios.append(before)
        self.ratios = ratios  # conditional acceptance per position
        self.typical = list(accumulate(ratios, mul))  # P(1..k accepted) in a typical round


def _sigmoid(z: float) -> float:
    if z >= 0:
        return 1.0 / (1.0 + math.exp(-z))
    power = math.exp(z)
    return power / (1.0 + power)
