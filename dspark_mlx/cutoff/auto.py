"""The default: as many drafts as pay here and now, and none where speculation would lose."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dspark_mlx.costs import Prices

from .acceptance import Acceptance
from .base import Outcome, Plan, Setting
from .choices import Choice, Looks, possible

WARM_UP = 4  # rounds of evidence before anything is concluded
EXPLORE = 0.01  # share of the time that may go to rounds that only teach,
PROBE = 0.015  # and while standing down, where nothing else does
ADVANCE = 4.0  # plain steps' worth of it to begin with, where no calibration is known
DEBT = 4.0  # how far, in explored rounds, a promising probe may overdraw that share
DOUBT = 0.75  # standard errors of a loss that are not yet believed
MOST_DOUBT = 0.08  # as a share of the rate
RETIME = 64  # rounds after which the price of a plain step is stale


@dataclass(frozen=True)
class Auto:
    """The rate-optimal rule for one request (method section 8.4), which also stands down.

    Before drafting it takes the best of: a plain step, m drafts for every m, and m drafts with
    a look at their confidences. Their rates come from the cost curve and from what past rounds
    say of a typical round. After a look, draft l is verified while the tokens it may bring
    outweigh, at the going rate, the time that it costs, looking ahead over a jagged curve.
    About 1% of the time goes to rounds that only teach: a deeper block, a probe while standing
    down, a plain step to time.

    Lossless at any temperature: the plan uses past rounds only. After a look, at temperature
    > 0, whether draft l is admitted uses confidences 1..l, all computed before draft l is drawn,
    and typical values for what lies beyond. The best of all lengths is taken only in greedy
    decoding, where no length changes the output, and where no confidence depends on a draft.
    """

    needs_confidence: ClassVar[bool] = False
    needs_costs: ClassVar[bool] = True
    causal: ClassVar[bool] = True

    def start(self, setting: Setting) -> AutoRun:
        """The state of a new generation; unless frozen, it begins where the last one stands."""
        if setting.frozen:
            return AutoRun(setting)
        # the newest run's live state is what has been learned: nothing is written back
        known = setting.learned.get("auto")
        run = known.again(setting) if isinstance(known, AutoRun) else AutoRun(setting)
        setting.learned["auto"] = run
        return run


class AutoRun:
    """One generation's state."""

    def __init__(self, setting: Setting) -> None:
        assert setting.costs is not None
        self._setting, self._costs = setting, setting.costs
        self._acceptance = Acceptance(setting.drafts, setting.confident, setting.calibration)
        self._looks = Looks(setting.drafts)
        self._rounds = 0  # with drafts
        self._since_plain = 0  # drafting rounds since a plain step was timed
        self._promising, self._standing = False, False
        self._rate, self._prices = 0.0, self._costs.at(0)
        known = setting.calibration is not None and bool(setting.calibration.acceptance)
        # seconds that may be spent on learning
        self._credit = 0.0 if known else ADVANCE * self._prices.plain

    def again(self, setting: Setting) -> AutoRun:
        """A copy for another generation of the same pair."""
        run = copy.copy(self)
        run._setting = setting
        run._acceptance = copy.deepcopy(self._acceptance)
        run._looks = copy.deepcopy(self._looks)
        run._credit = min(self._credit, 0.0)
        return run

    # before drafting

    def plan(self, drafts: int, context: int) -> Plan:
        """The best choice, or now and then one that teaches."""
        self._prices = prices = self._costs.at(context)
        plain = Choice(0, 0, False, 1.0, prices.plain)
        if drafts < 1:
            self._rate = plain.rate
            return self._as_plan(plain, plain, "limit")
        options = possible(self._acceptance.typical, self._looks, prices, drafts)
        if not self._setting.confident:
            options = [o for o in options if not o.look]
        best = max(options, key=lambda o: o.rate)
        if self._rounds < WARM_UP and prices.curve.can_pay:
            self._rate = max(best.rate, plain.rate)
            return self._as_plan(self._first(best, drafts), plain, "warm-up")
        doubt = min(DOUBT * self._acceptance.error / best.tokens, MOST_DOUBT)
        stands_down = plain.rate >= best.rate * (1.0 if self._standing else 1.0 + doubt)
        self._standing = stands_down
        chosen = plain if stands_down else best
        self._rate = chosen.rate
        if teaching := self._teaching(chosen, best, plain, drafts):
            self._credit -= teaching[0].excess(self._rate)
            return self._as_plan(teaching[0], plain, teaching[1], gain=best.rate)
        self._credit += (PROBE if stands_down else EXPLORE) * chosen.seconds
        reason = "stood down" if stands_down else "confidence" if chosen.look else "length"
        return self._as_plan(chosen, plain, reason, gain=best.rate)

    def _first(self, best: Choice, drafts: int) -> Choice:
        """A first round: with confidences, draw the whole block to see them all."""
        if not self._setting.confident:
            return best
        return Choice(drafts, best.verify, best.look, best.tokens, best.seconds)

    def _teaching(
        self, chosen: Choice, best: Choice, plain: Choice, drafts: int
    ) -> tuple[Choice, str] | None:
        """A round that teaches, when there is credit for what it is expected to lose."""
        prices, typical = self._prices, self._acceptance.typical
        found: tuple[Choice, str] | None = None
        if chosen.draw == 0:
            if not prices.curve.can_pay:
                return None
            draw = drafts if self._setting.confident else best.draw
            seconds = prices.round(draw, best.draw)
            found = Choice(draw, best.draw, False, 1 + sum(typical[: best.draw]), seconds), "probe"
        elif not (self._costs.frozen or prices.plain_is_timed):
            return plain, "timing"
        elif not self._costs.frozen and self._since_plain >= RETIME:
            found = plain, "timing"
        elif chosen.draw < drafts or chosen.look:
            # a deeper block: positions beyond the choice, and drafts that a cut keeps unjudged
            count = drafts if self._setting.confident else min(drafts, 2 * chosen.draw + 1)
            seconds = prices.round(count, count)
            found = Choice(count, count, False, 1 + sum(typical[:count]), seconds), "explore"
        if found is None:
            return None
        excess = found[0].excess(self._rate)
        patience = -DEBT * excess if self._promising and found[1] == "probe" else excess
        return found if self._credit >= patience else None

    def _as_plan(self, choice: Choice, plain: Choice, reason: str, gain: float = 0.0) -> Plan:
        return Plan(
            draw=choice.draw,
            verify=choice.verify,
            look=choice.look,
            reason=reason,
            gain=(gain or choice.rate) / plain.rate,
            standing_down=reason == "stood down",
        )

    # after a look

    def cut(self, confidence: Sequence[float]) -> int:
        """How many drafts to verify, at the going rate."""
        drawn = len(confidence)
        survival = self._acceptance.survival(confidence, drawn)
        seconds = [self._prices.round(drawn, k, looked=True) for k in range(drawn + 1)]
        if self._setting.hindsight:
            return best_length(survival, seconds, self._rate)
        return causal_length(survival, self._acceptance.ratios, seconds, self._rate)

    # after the round

    def observe(self, outcome: Outcome) -> None:
        """Learn acceptance, prices, and what a look would have done."""
        prices = self._costs.at(outcome.context)
        prices.observe(outcome.drawn, outcome.verified, outcome.looked, outcome.seconds)
        if outcome.drawn == 0:
            self._since_plain = 0
            return
        self._since_plain += 1
        self._rounds += 1
        known = self._acceptance
        survival = known.survival(outcome.confidence, outcome.drawn)
        if self._setting.confident:
            self._imagine(known.extended(survival), prices)
        known.observe(outcome.confidence, survival, outcome.judged, outcome.accepted)
        tokens = 1 + sum(survival[: outcome.verified])
        if not self._setting.confident:
            tokens = 1.0 + outcome.accepted
        self._promising = tokens / prices.round(outcome.drawn, outcome.verified) > 1 / prices.plain

    def _imagine(self, survival: list[float], prices: Prices) -> None:
        """What each number of drafts with a look would have come to in this round."""
        full = len(survival)
        seconds = [prices.round(full, k, looked=True) for k in range(full + 1)]
        if self._setting.hindsight:
            lengths = best_lengths(survival, seconds, self._rate)
        else:
            length = causal_length(survival, self._acceptance.ratios, seconds, self._rate)
            lengths = [min(length, m) for m in range(1, full + 1)]
        self._looks.add(lengths, survival, [s - seconds[0] for s in seconds])


def best_length(survival: Sequence[float], seconds: Sequence[float], rate: float) -> int:
    """The length with the most tokens, less what its time is worth; seconds[l] verifies l."""
    return best_lengths(survival, seconds, rate)[-1] if survival else 0


def best_lengths(survival: Sequence[float], seconds: Sequence[float], rate: float) -> list[int]:
    """`best_length` among 0..m, for every m = 1..len(survival)."""
    tokens, best, length, found = 0.0, -rate * seconds[0], 0, []
    for k, alive in enumerate(survival, start=1):
        tokens += alive
        value = tokens - rate * seconds[k]
        if value > best:
            best, length = value, k
        found.append(length)
    return found


def causal_length(
    survival: Sequence[float], ratios: Sequence[float], seconds: Sequence[float], rate: float
) -> int:
    """Admit draft l while some m >= l is expected to pay for rows l..m; stop at the first not.

    survival[l - 1] is used to judge draft l, and no later one; beyond it typical `ratios`.
    """
    for k, alive in enumerate(survival, start=1):
        expected, reached = 0.0, alive
        for m in range(k, len(survival) + 1):
            expected += reached
            if expected > rate * (seconds[m] - seconds[k - 1]):
                break
            reached *= ratios[m] if m < len(ratios) else ratios[-1]
        else:
            return k - 1
    return len(survival)
