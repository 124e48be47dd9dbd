"""Every policy, without a model: causality, the paper's examples, what each decides."""

import random

import pytest

from dspark_mlx.costs import CostCurve, Costs
from dspark_mlx.cutoff import KNOWN, POLICIES, Outcome, Setting, parse_cutoff
from dspark_mlx.cutoff.acceptance import Acceptance, Corrector
from dspark_mlx.cutoff.auto import best_length, causal_length

NAMES = ["auto", "full", "fixed:2", "threshold:0.5", "paper", "hindsight"]
# the paper's appendix: rounds per second with 1, 2 and 3 rows
APPENDIX = CostCurve((1.0, 1 / 0.5, 1 / 0.45), (1e-12, 1e-12))


def setting(curve, greedy=False, **more):
    return Setting(curve.drafts, greedy, costs=Costs({0: curve}, frozen=True), **more)


def random_curve(numbers, drafts):
    rows = [1.0]
    for _ in range(drafts):
        rows.append(rows[-1] + numbers.choice([0.0, 0.02, 0.2, 0.6]))
    draft = numbers.choice([0.01, 0.3])
    return CostCurve(tuple(rows), (draft,) * drafts, look=0.01)


def some_rounds(decider, drafts, numbers, count):
    """Random rounds, as the loop would tell them; returns the last plan."""
    for _ in range(count):
        plan = decider.plan(drafts, 10)
        told = [numbers.uniform(0.05, 0.99) for _ in range(plan.draw)]
        verified = decider.cut(told) if plan.look else plan.verify
        assert 0 <= verified <= plan.draw <= drafts
        accepted = next((k for k in range(verified) if numbers.random() > told[k]), verified)
        decider.observe(Outcome(plan.draw, verified, verified, accepted, plan.look, told, 10, 1.0))
    return decider.plan(drafts, 10)


def test_the_table_of_names():
    assert {name.partition(":")[0] for name in NAMES} == set(POLICIES)
    assert KNOWN.startswith("auto, full, fixed:N, threshold:T")


@pytest.mark.parametrize("name", NAMES)
def test_no_draft_decides_about_itself(name):
    """Whether draft k is verified is settled by confidences 1..k (method 8.3)."""
    numbers, changed = random.Random(name), 0
    for _ in range(60):
        drafts = numbers.randint(1, 7)
        decider = parse_cutoff(name).start(setting(random_curve(numbers, drafts)))
        some_rounds(decider, drafts, numbers, numbers.randint(0, 12))
        one = [numbers.uniform(0.01, 0.99) for _ in range(drafts)]
        for k in range(1, drafts + 1):
            other = one[:k] + [numbers.uniform(0.01, 0.99) for _ in range(drafts - k)]
            changed += (decider.cut(one) >= k) != (decider.cut(other) >= k)
    assert (changed > 0) == (name == "hindsight")


def law_of_the_first_token(decider, plan):
    """Exact law of what one round commits first: target (0.7, 0.3), drafts (0.5, 0.5)."""
    p, q, law = (0.7, 0.3), (0.5, 0.5), [0.0, 0.0]
    for first in (0, 1):
        told = [0.8, 0.9 if first == 0 else 1e-6][: plan.draw]
        length = decider.cut(told) if plan.look else plan.verify
        if length == 0:
            law = [a + q[first] * b for a, b in zip(law, p, strict=True)]
            continue
        accept = min(1.0, p[first] / q[first])
        law[first] += q[first] * accept
        law[0] += q[first] * (1 - accept)  # the residual lies on token 0 alone
    return law


@pytest.mark.parametrize("name", NAMES)
def test_counterexample_of_the_appendix(name):
    """Only the hindsight policy turns (0.7, 0.3) into (0.85, 0.15); it is refused (see below)."""
    decider = parse_cutoff(name).start(setting(APPENDIX))
    for rounds in range(6):
        law = law_of_the_first_token(decider, decider.plan(2, 1))
        assert law == pytest.approx((0.85, 0.15) if name == "hindsight" else (0.7, 0.3)), rounds
        decider.observe(Outcome(2, 0, 0, 0, True, [0.8, 0.9], 1, 1.0))
    assert parse_cutoff(name).causal == (name != "hindsight")


def test_the_papers_scheduler_vector():
    """T_d = 10, T_v = (20, 21, 22, 30), a = (0.8, 0.6, 0.5): two drafts (method, section 13)."""
    curve = CostCurve((20.0, 21.0, 22.0, 30.0), (10.0,) * 3)
    for name in ("paper", "hindsight"):
        assert parse_cutoff(name).start(setting(curve)).cut([0.8, 0.75, 0.5 / 0.6]) == 2


def test_paper_stops_at_the_first_failure_and_hindsight_does_not():
    jagged = CostCurve((20.0, 60.0, 60.0, 60.0), (1.0,) * 3)
    told = [0.95, 0.95, 0.95]
    assert parse_cutoff("paper").start(setting(jagged)).cut(told) == 0
    assert parse_cutoff("hindsight").start(setting(jagged, greedy=True)).cut(told) == 3


def test_rate_rule_extends_while_a_draft_is_worth_its_row():
    """a_l > rate x dT (method 8.4): flat rows all, dear rows none."""
    survival = [0.8, 0.4, 0.1]
    for rule in (
        lambda s, t, r: causal_length(s, [0.8, 0.5, 0.25], t, r),
        best_length,
    ):
        assert rule(survival, [1.0, 1.0, 1.0, 1.0], 0.5) == 3
        assert rule(survival, [1.0, 1.5, 2.0, 2.5], 0.5) == 2
        assert rule(survival, [1.0, 3.0, 5.0, 7.0], 0.5) == 0


def test_look_ahead_over_a_jagged_curve():
    """The second row is dear and the third free: worth it together, for both rules."""
    seconds, ratios = [1.0, 1.0, 1.9, 1.9], [0.9, 0.9, 0.9]
    assert causal_length([0.9, 0.8, 0.75], ratios, seconds, 1.0) == 3
    assert causal_length([0.9, 0.3, 0.25], ratios, seconds, 1.0) == 1
    assert best_length([0.9, 0.8, 0.75], seconds, 1.0) == 3


def test_nothing_is_drafted_where_it_cannot_pay():
    """A drafter that costs more than its whole block could bring (P67)."""
    hopeless = CostCurve((1.0,) * 5, (5.0,) * 4)
    decider = parse_cutoff("auto").start(setting(hopeless, greedy=True))
    assert not hopeless.can_pay
    for _ in range(300):
        plan = decider.plan(4, 1)
        assert (plan.draw, plan.reason, plan.standing_down) == (0, "stood down", True)
        decider.observe(Outcome(0, 0, 0, 0, False, None, 1, 1.0))


@pytest.mark.parametrize(
    ("rows", "most"), [([10.0] * 8, (7, 7)), ([10.0 + 7 * k for k in range(8)], (0, 3))]
)
def test_width_follows_the_cost_table(rows, most):
    """Flat: the full block; linear: one to three rows (P68, P73)."""
    curve = CostCurve(tuple(rows), (1.0,) * 7, look=0.5)
    decider, numbers = parse_cutoff("auto").start(setting(curve, confident=False)), random.Random(1)
    chosen = []
    for _ in range(200):
        plan = decider.plan(7, 1)
        accepted = next((k for k in range(plan.verify) if numbers.random() > 0.75), plan.verify)
        decider.observe(Outcome(plan.draw, plan.verify, plan.verify, accepted, False, None, 1, 1.0))
        chosen += [plan.verify] * (plan.reason == "length")
    assert all(most[0] <= m <= most[1] for m in chosen[50:])


def test_decisions_follow_the_context_length():
    """The same acceptance pays at a short context and not at a long one (P69)."""
    short, long = CostCurve((1.0,) * 5, (0.1,) * 4), CostCurve((1.0, 4, 5, 6, 7), (0.1,) * 4)
    costs = Costs({0: short, 16384: long}, frozen=True)
    decider = parse_cutoff("auto").start(Setting(4, costs=costs, confident=False))
    some_rounds(decider, 4, random.Random(0), 40)
    assert decider.plan(4, 100).draw == 4
    assert decider.plan(4, 20000).reason == "stood down"


@pytest.mark.parametrize("confident", [True, False])
def test_back_off_and_return(confident):
    """Drafts that keep failing are given up but for probes; good ones are found again (P70)."""
    curve = CostCurve(tuple(1 + 0.15 * k for k in range(8)), (0.4,) * 7, look=0.02)
    decider = parse_cutoff("auto").start(setting(curve, greedy=True, confident=confident))

    def play(rounds, good):
        drawn = 0
        for _ in range(rounds):
            plan = decider.plan(7, 1)
            told = [0.95 if good else 0.1] * plan.draw
            verified = decider.cut(told) if plan.look else plan.verify
            decider.observe(
                Outcome(plan.draw, verified, verified, verified * good, plan.look,
                        told if confident else None, 1, 1.0)
            )  # fmt: skip
            drawn += plan.draw > 0
        return drawn

    play(30, good=False)
    assert play(200, good=False) <= 200 * 0.05
    play(300, good=True)
    assert play(100, good=True) == 100


def test_corrections_mend_confidences_that_are_off():
    """Overconfident by a factor of three and two logits: learned from outcomes."""
    numbers = random.Random(3)
    corrector = Corrector(2, None)

    def told(p):
        z = numbers_logit(p) * 3 + 2
        return 1 / (1 + 2.718281828**-z)

    for _ in range(3000):
        p = numbers.uniform(0.05, 0.95)
        corrector.learn(0, told(p), numbers.random() < p)
    for p in (0.2, 0.5, 0.8):
        assert corrector.probability(0, told(p)) == pytest.approx(p, abs=0.07)


def numbers_logit(p):
    from math import log

    return log(p / (1 - p))


def test_without_a_head_acceptance_is_counted_from_a_prior():
    """The prior gives way to outcomes; an untried position inherits from the one before."""
    known = Acceptance(4, confident=False, calibration=None)
    start = known.ratios
    assert start[0] == start[3] == 0.6
    for _ in range(200):
        known.observe(None, known.typical[:2], judged=2, accepted=2)
    assert known.ratios[0] > 0.98 and known.ratios[1] > 0.98 and known.ratios[3] > 0.9
    for _ in range(60):
        known.observe(None, known.typical[:2], judged=2, accepted=0)
    assert known.ratios[0] < 0.15, "a change is noticed well before the memory is used up"
