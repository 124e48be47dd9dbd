"""A policy at work in one generation: what it may know, what it decides, what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from .calibration import Calibration, Scale
from .costs import Costs
from .cutoff import Decider, Outcome, Plan, Setting
from .events import Round
from .options import Options
from .pair import Pair
from .timing import ensure_curve

PAST_LIMIT = "drafter limit"  # the reason of rounds beyond what the drafter was made for
UNDECIDED = ("limit", PAST_LIMIT)  # reasons of rounds in which a policy had no say


class Decisions:
    """Decides how much of each block to draw and to verify.

    With a seed, decisions rest on the stored cost curve and on tokens and confidences alone, so
    that the run repeats; without one they also learn from real seconds and from earlier runs.
    """

    def __init__(self, pair: Pair, options: Options, slots: int) -> None:
        self._pair, self._options = pair, options
        drafter = pair.drafter
        self._drafts = 0 if drafter is None else drafter.drafts_of(slots)
        self._decider: Decider | None = None

    def begin(self) -> None:
        """Get ready, before the first round; may measure the pair, once and for a second."""
        if self._decider is None and self._drafts:
            self._decider = self._options.policy.start(self._setting())

    def plan(self, remaining: float, context: int) -> Plan:
        """What to draw and verify when `remaining` tokens may still be committed."""
        if self._decider is None:
            return Plan(0, 0, reason="plain")
        drafts = int(min(self._drafts, remaining - 1))
        if drafts < 1:
            return Plan(0, 0, reason="limit")
        plan = self._decider.plan(drafts, context)
        draw = max(0, min(plan.draw, drafts))
        return Plan(
            draw, max(0, min(plan.verify, draw)), plan.look and draw > 0, plan.reason, plan.gain,
            plan.standing_down,
        )  # fmt: skip

    def cut(self, confidence: Sequence[float]) -> int:
        """After a look: how many drafts to verify."""
        assert self._decider is not None
        return max(0, min(self._decider.cut(confidence), len(confidence)))

    def observe(self, event: Round) -> None:
        """Tell the policy what became of the round."""
        if self._decider is None or event.reason in UNDECIDED:
            return
        self._decider.observe(
            Outcome(
                drawn=len(event.proposed),
                verified=event.verified,
                judged=event.proposal_len,
                accepted=event.accepted,
                looked=event.looked,
                confidence=event.confidence,
                context=event.anchor_position,
                seconds=event.seconds,
            )
        )

    def _setting(self) -> Setting:
        pair, options = self._pair, self._options
        assert pair.drafter is not None
        heads, sampling = pair.drafter.config, options.sampling
        temperature = 0.0 if sampling.greedy else sampling.temperature
        frozen = options.seed is not None
        costs = None
        if options.policy.needs_costs:
            ensure_curve(pair)
            costs = Costs(pair.tuning.curves, frozen)
        return Setting(
            drafts=self._drafts,
            greedy=sampling.greedy,
            confident=heads.confidence is not None,
            foresight=heads.confidence is not None and not heads.confidence.with_markov,
            frozen=frozen,
            costs=costs,
            calibration=_calibration(pair, temperature),
            learned=pair.tuning.learned.setdefault((self._drafts, temperature), {}),
        )


def _calibration(pair: Pair, temperature: float) -> Calibration | None:
    """The fit of this machine, else what the checkpoint ships, else nothing."""
    assert pair.drafter is not None
    shipped = pair.drafter.config.confidence_temperatures
    if (fit := pair.tuning.calibration(temperature)) is not None or shipped is None:
        return fit
    return Calibration(temperature, acceptance=(), rounds=0, scales=tuple(map(Scale, shipped)))
