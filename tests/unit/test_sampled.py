"""Sampling with a drafter keeps the target's distribution (P25), by chi-square on fixed seeds."""

import mlx.core as mx
import numpy as np
import pytest

import dspark_mlx.verify
from dspark_mlx import Prefilled, Round, generate
from dspark_mlx.costs import CostCurve
from dspark_mlx.cutoff import Hindsight
from dspark_mlx.options import Options
from dspark_mlx.run import run_events
from dspark_mlx.sampling import Sampling
from dspark_mlx.verify import verify_sampled
from tests.checks import chi_square
from tests.fakes import ScriptedDrafter, pair_with
from tests.markov import markov_target, random_table

V = 6
LEAST = 1e-3  # the smallest p-value that passes
NEVER = -np.inf


def tables(case):
    """Logits of target and drafter [V, V], each row given the token before."""
    numbers = np.random.default_rng(11)
    p, q = numbers.standard_normal((V, V)) * 1.5, numbers.standard_normal((V, V)) * 1.5
    if case == "q zero where p is not":
        q[:, [0, 3]] = NEVER
        q[2] = NEVER
        q[2, 5] = 0
    elif case == "one-hot q":
        q = np.where(np.eye(V)[[1, 2, 3, 4, 5, 0]] > 0, 0.0, NEVER)
    elif case == "one-hot p":
        p = np.where(np.eye(V)[[2, 0, 1, 5, 3, 4]] > 0, 0.0, NEVER)
    elif case == "equal":
        q = p.copy()
    elif case == "disjoint":
        p[:, :3], q[:, 3:] = NEVER, NEVER
    return p, q


CASES = ["any", "q zero where p is not", "one-hot q", "one-hot p", "equal", "disjoint"]
SETTINGS = [
    Sampling(0.7), Sampling(1.0), Sampling(1.5), Sampling(1.0, top_p=0.9),
    Sampling(0.7, top_k=3), Sampling(1.5, min_p=0.1), Sampling(0.7, 0.9, 4, 0.1),
]  # fmt: skip


def inverse(law, uniforms):
    """The index that each uniform number falls on: laws [..., V] -> [...]."""
    mass = np.cumsum(law.astype(np.float64), axis=-1)
    return (mass / mass[..., -1:] <= uniforms[..., None]).sum(axis=-1)


def judge(drafts, q, p, uniforms, number):
    """`verify_sampled` whose final draw inverts a given uniform number."""

    def draw(row):
        mass = mx.cumsum(row[0])
        return mx.sum(mass <= number * mass[-1]).reshape(1)

    verdict = verify_sampled(drafts, q, p, uniforms, draw)
    return verdict.accepted, verdict.final[0]


def committed_pairs(p, q, drafts, count, seed, told=None):
    """First two committed tokens of many rounds with anchor 0; p and q are laws [V, V].

    Drafts come from q; `told` is what the rule is told they came from (q).
    """
    told = q if told is None else told
    numbers = np.random.default_rng(seed)
    previous, drawn = np.zeros(count, int), []
    for _ in range(drafts):
        previous = inverse(q[previous], numbers.random(count))
        drawn.append(previous)
    drawn = np.stack(drawn, axis=1)
    before = np.concatenate([np.zeros((count, 1), int), drawn], axis=1)
    accepted, final = mx.vmap(judge)(
        mx.array(drawn), mx.array(told[before[:, :-1]]), mx.array(p[before]),
        mx.array(numbers.random((count, drafts)).astype(np.float32)),
        mx.array(numbers.random(count).astype(np.float32)),
    )  # fmt: skip
    accepted, final = np.array(accepted), np.array(final)
    first = np.where(accepted >= 1, drawn[:, 0], final)
    fresh = inverse(p[first], numbers.random(count))  # by the round that would follow
    second = np.where(accepted == 1, final, fresh)
    if drafts > 1:
        second = np.where(accepted >= 2, drawn[:, 1], second)
    return first, second, accepted


def laws_of(case, setting):
    return [np.array(setting.probabilities(mx.array(t.astype(np.float32)))) for t in tables(case)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_law_of_the_verdict(case, setting):
    """The first committed token follows p, and the pair of the first two the product."""
    p, q = laws_of(case, setting)
    for drafts in range(1, 5):
        first, second, accepted = committed_pairs(p, q, drafts, 6000, seed=drafts)
        pairs = np.bincount(V * first + second, minlength=V * V)
        assert chi_square(np.bincount(first, minlength=V), p[0]) > LEAST
        assert chi_square(pairs, (p[0][:, None] * p).ravel()) > LEAST
        if case == "equal":
            assert (accepted == drafts).all()
        elif case == "disjoint":
            assert (accepted == 0).all()
        else:
            survives = np.minimum(p[0], q[0]).sum()
            assert abs((accepted >= 1).mean() - survives) < 0.03


def test_the_test_has_power(monkeypatch):
    """The classical mistakes do not pass: a plain redraw, a wrong q row, drafts from elsewhere."""
    p, q = laws_of("any", Sampling(1.0))

    def p_value(q_told=q):
        first, second, _ = committed_pairs(p, q, 2, 8000, seed=1, told=q_told)
        counts = np.bincount(V * first + second, minlength=V * V)
        return chi_square(counts, (p[0][:, None] * p).ravel())

    assert p_value() > LEAST
    assert p_value(np.roll(q, 1, axis=0)) < 1e-9
    assert p_value(np.full((V, V), 1 / V)) < 1e-9
    monkeypatch.setattr(dspark_mlx.verify, "residual", lambda row, rejected: row)
    assert p_value() < 1e-9


def markov_script(logits):
    """Drafts from logits [V, V] by the token before: the loop gets q through `pick`."""
    rows = mx.array(logits.astype(np.float32))
    mx.eval(rows)
    return lambda position, k, previous: rows[previous]


def uncertain(tokens):
    """Confidences that fall after some tokens and not after others: never of their own token."""
    later = [mx.where(token % 2 == 0, 2.0, -2.0) for token in tokens[:-1]]
    return mx.concatenate([mx.array([1.2]), *later])


# rows that cost enough for a policy to weigh them
STEEP = CostCurve(tuple(0.01 + 0.003 * k for k in range(6)), (0.0005,) * 5, look=0.0001)
END_TO_END = [
    ("full", 4, None, {"temperature": 1.0}),
    ("full", 1, None, {"temperature": 1.5}),
    ("full", 8, 3, {"temperature": 0.7}),
    ("fixed:2", 4, None, {"temperature": 1.0, "top_p": 0.9}),
    ("fixed:0", 4, None, {"temperature": 1.0}),
    ("threshold:0.5", 5, None, {"temperature": 1.0}),
    ("threshold:0.7", 5, None, {"temperature": 1.0, "top_k": 4}),
    ("threshold:0.5", 5, 3, {"temperature": 0.7, "min_p": 0.1}),
    ("auto", 5, None, {"temperature": 1.0}),
    ("auto", 5, 3, {"temperature": 0.7, "min_p": 0.1}),
    ("paper", 5, None, {"temperature": 1.0}),
]


def long_run(p, script, cutoff, block, slots, length, confidence=uncertain, curve=None, **options):
    """The rounds of one long generation, and all its tokens after the prompt [0, 0]."""
    target = markov_target(p)
    drafter = ScriptedDrafter(target, script, block=block, confidence=confidence)
    settings = Options.of(
        max_tokens=length, cutoff=cutoff, block_size=slots, seed=options.pop("seed", 1), **options
    )
    pair = pair_with(target, drafter, curve=curve)
    events = list(run_events(pair, [0, 0], settings))
    tokens = [0, 0, events[0].token] + [t for e in events[1:-1] for t in e.tokens]
    drafter.check(tokens)
    return events[1:-1], np.array(tokens)


@pytest.mark.parametrize(("cutoff", "block", "slots", "options"), END_TO_END)
def test_law_of_a_long_run(cutoff, block, slots, options):
    """Every transition of one generation follows the target's table, wherever rounds begin."""
    p, q = random_table(3, V, 1.2), np.random.default_rng(4).standard_normal((V, V))
    rounds, tokens = long_run(
        p, markov_script(q), cutoff, block, slots, 700, curve=STEEP, **options
    )
    law = np.array(Sampling(**options).probabilities(mx.array(p.astype(np.float32))))
    counts = np.zeros((V, V, V))
    np.add.at(counts, (tokens[:-2], tokens[1:-1], tokens[2:]), 1)
    assert chi_square(counts.reshape(-1, V), law.reshape(-1, V)) > LEAST
    # the first place of a round apart: that is where anchor and first q row meet
    counts[:] = 0
    for r in rounds:
        counts[tokens[r.anchor_position - 1], r.anchor, r.tokens[0]] += 1
    assert chi_square(counts.reshape(-1, V), law.reshape(-1, V)) > LEAST
    lengths = {r.verified for r in rounds}
    assert lengths <= {"full": {slots or block}, "fixed:2": {2}, "fixed:0": {0}}.get(
        cutoff, set(range(6))
    ) | set(range(block))
    assert len(lengths) > 2 or cutoff.startswith("f")


@pytest.mark.parametrize("options", [o for *_, o in END_TO_END], ids=str)
def test_drafts_follow_the_law_of_the_target(options):
    """Temperature and filters act on the drafter too: one that knows p is never refused."""
    p = random_table(3, V, 1.2)[0]
    rounds, _ = long_run(p, markov_script(p), "full", 4, None, 60, **options)
    assert all(r.accepted == r.verified for r in rounds)


def test_law_of_many_short_runs():
    """Fresh generations, each its own seed: prefill token, round one, and what joins them."""
    p, q = random_table(5, V, 1.0), np.random.default_rng(6).standard_normal((V, V))
    target = markov_target(p)
    pair = pair_with(target, ScriptedDrafter(target, markov_script(q), block=2))
    runs = np.array([
        generate(pair, [0, 1], max_tokens=4, temperature=1.0, seed=seed).tokens
        for seed in range(400)
    ])  # fmt: skip
    law = np.array(Sampling(1.0).probabilities(mx.array(p.astype(np.float32))))
    assert chi_square(np.bincount(runs[:, 0], minlength=V), law[0, 1]) > LEAST
    for k in range(3):
        counts = np.zeros((V, V, V))
        before = runs[:, k - 1] if k else np.full(len(runs), 1)
        np.add.at(counts, (before, runs[:, k], runs[:, k + 1]), 1)
        assert chi_square(counts.reshape(-1, V), law.reshape(-1, V)) > LEAST


@pytest.mark.parametrize("broken", [np.nan, -np.inf, np.inf])
def test_broken_drafter(broken):
    """Not a number, no mass at all: nothing is accepted and the law stays."""
    law = [0.7, 0.2, 0.1]
    script = markov_script(np.full((3, 3), broken))
    rounds, tokens = long_run(np.log(law), script, "full", 3, None, 300, temperature=1.0)
    assert not any(r.accepted for r in rounds)
    assert chi_square(np.bincount(tokens[2:], minlength=3), law) > LEAST


class Unrefused(Hindsight):
    """The policy that is refused when sampling, let through to see what it would do."""

    causal = True


def telling(tokens):
    """The second confidence is 0.9 after token 0 and nil after token 1 (method 8.3)."""
    c = mx.where(tokens[0] == 0, 0.9, 1e-6)
    second = mx.log(c / (1 - c))
    return mx.concatenate([mx.array([np.log(4.0)]), second])[: len(tokens)]


@pytest.mark.parametrize(
    ("cutoff", "law", "lengths"),
    [
        ("full", (0.7, 0.3), {2}),
        ("fixed:1", (0.7, 0.3), {1}),
        ("threshold:0.5", (0.7, 0.3), {1, 2}),
        ("threshold:0.95", (0.7, 0.3), {0}),
        ("paper", (0.7, 0.3), {0}),
        ("auto", (0.7, 0.3), None),
        (Unrefused(), (0.85, 0.15), {0, 2}),
    ],
    ids=["full", "fixed:1", "threshold:0.5", "threshold:0.95", "paper", "auto", "hindsight"],
)
def test_two_token_counterexample(cutoff, law, lengths):
    """A causal cut keeps (0.7, 0.3); the hindsight of Appendix A gives (0.85, 0.15), and shows."""
    speeds = (1.0, 0.5, 0.45)  # rounds per second with 1, 2 and 3 rows
    rounds, _ = long_run(
        np.log([0.7, 0.3]), markov_script(np.log(np.full((2, 2), 0.5))), cutoff, 2, None, 800,
        confidence=telling, curve=CostCurve(tuple(1 / s for s in speeds), (1e-9, 1e-9)),
        temperature=1.0,
    )  # fmt: skip
    rounds = rounds[:-1]
    assert lengths is None or {r.verified for r in rounds} == lengths
    counts = np.bincount([r.tokens[0] for r in rounds], minlength=2)
    assert chi_square(counts, law) > LEAST
    assert (chi_square(counts, (0.7, 0.3)) > LEAST) == (law[0] == 0.7)


def test_a_stop_token_does_not_disturb_the_law():
    """Lengths of sampled answers are geometric when token 0 stops."""
    target = markov_target(np.log([0.25, 0.45, 0.3]))
    drafter = ScriptedDrafter(target, markov_script(np.log(np.full((3, 3), 1 / 3))), block=4)
    pair = pair_with(target, drafter, stops=[0])
    lengths = []
    for seed in range(300):
        events = run_events(pair, [1], Options.of(max_tokens=9, temperature=1.0, seed=seed))
        lengths.append(sum(1 if isinstance(e, Prefilled) else len(e.tokens)
                           for e in events if isinstance(e, Prefilled | Round)))  # fmt: skip
    law = [0.25 * 0.75**k for k in range(8)] + [0.75**8]
    assert chi_square(np.bincount(lengths, minlength=10)[1:], law) > LEAST
