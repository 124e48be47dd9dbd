"""The default policy inside real generations: lossless, repeatable, out of the way."""

import functools

import mlx.core as mx
import pytest

from dspark_mlx import Finished, Round, generate, stream
from dspark_mlx.costs import CostCurve
from dspark_mlx.errors import OptionError
from dspark_mlx.options import Options
from dspark_mlx.run import Run
from dspark_mlx.stats import Stats
from dspark_mlx.summary import summary
from tests.checks import check_run
from tests.drafters import random_dspark
from tests.fakes import ScriptedDrafter, falling, pair_with, plain, scripts, sure, tiny_target
from tests.markov import markov_target, random_table

HOPELESS = CostCurve((0.01,) * 8, (0.09,) * 7)
DEAR = CostCurve(tuple(0.01 + 0.002 * k for k in range(8)), (0.01,) * 7, look=0.0001)


@functools.cache
def recorded(length=400):
    target = markov_target(random_table(0, 12))
    return target, plain(target, [1, 2, 3], length)


def scripted(script, curve=None, confidence=None, **more):
    target, reference = recorded()
    drafter = ScriptedDrafter(target, scripts(reference, 12)[script], confidence=confidence, **more)
    return pair_with(target, drafter, curve=curve)


def rounds_of(pair, **options):
    return [e for e in stream(pair, [1, 2, 3], **options) if isinstance(e, Round)]


@pytest.mark.parametrize("confidence", [None, falling, sure(0.05)])
@pytest.mark.parametrize("script", ["wrong", "oracle", "first 3 right"])
def test_greedy_output_is_the_targets(script, confidence):
    """Through warm-up, probes, looks and standing down; live and frozen."""
    pair = scripted(script, DEAR, confidence)
    for seed in (None, None, 1):
        rounds = check_run(pair, recorded()[1], 200, cutoff="auto", seed=seed)
        assert {r.reason for r in rounds} >= {"warm-up"} or seed is None


def test_wrong_drafts_end_in_plain_decoding():
    """Nearly every later round is a plain step: one row, no draft, and it says why (P67, P70)."""
    pair = scripted("wrong", DEAR)
    pair.target.model.log.calls.clear()
    events = list(stream(pair, [1, 2, 3], max_tokens=300, seed=1))
    late = [e for e in events if isinstance(e, Round)][60:]
    still = [r for r in late if r.reason == "stood down"]
    assert len(still) > 0.95 * len(late)
    assert {(r.proposed, r.verified, r.origin) for r in still} == {((), 0, "plain")}
    assert sum(width == 1 for _, width in pair.target.model.log.calls[-60:]) >= 57
    stats = Stats()
    for event in events:
        stats.add(event)
    assert stats.stood_down >= len(still) and stats.expected_gain < 1
    assert "stood down in" in summary(stats, "length") and "does not pay" in summary(stats, "x")


def test_good_drafts_are_used():
    rounds = rounds_of(scripted("oracle", DEAR), max_tokens=300, seed=1)
    assert sum(r.verified == 7 for r in rounds[10:-2]) > 0.9 * len(rounds[10:-2])
    assert all(r.gain > 1 for r in rounds[10:-2] if r.gain is not None)


def test_nothing_is_drafted_where_nothing_can_pay():
    assert all(not r.proposed for r in rounds_of(scripted("oracle", HOPELESS), max_tokens=60))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cutoff", ["auto", "paper"])
def test_a_seed_repeats_the_decisions_too(cutoff, temperature):
    """Whatever other runs taught in between, and however long rounds took."""
    pair = scripted("random or right", DEAR, falling)
    options = {"max_tokens": 120, "cutoff": cutoff, "temperature": temperature, "seed": 5}

    def decided():
        return [(r.proposed, r.verified, r.reason, r.gain) for r in rounds_of(pair, **options)]

    first = decided()
    generate(pair, [1, 2, 3], max_tokens=150, cutoff=cutoff)
    assert decided() == first


def test_an_unseeded_run_goes_on_from_the_last_one():
    """A pair is not tried from the start again at every turn."""
    pair = scripted("wrong", DEAR)
    first, second = (rounds_of(pair, max_tokens=100) for _ in range(2))
    assert first[0].reason == "warm-up"
    assert "warm-up" not in {r.reason for r in second}


def test_waits():
    """One wait per round, one more where confidences were looked at; decisions cost none."""
    pair = scripted("random or right", DEAR, falling)
    for options in ({"seed": 1}, {}, {"temperature": 0.9, "seed": 2}):
        _, *rounds, last = stream(pair, [1, 2, 3], max_tokens=150, **options)
        assert isinstance(last, Finished)
        assert last.syncs == 2 + len(rounds) + sum(r.looked for r in rounds)


def test_looks_are_taken_where_they_pay():
    """Confidences that tell good blocks from bad, on a machine where rows are dear."""
    target, reference = recorded()
    right = scripts(reference, 12)["oracle"]
    wrong = scripts(reference, 12)["wrong"]

    def sometimes(position, k, previous):
        return (right if position // 8 % 2 else wrong)(position, k, previous)

    place = []

    def tells(tokens):
        return mx.full((len(tokens),), 3.0 if place[-1] // 8 % 2 else -3.0)

    drafter = ScriptedDrafter(target, sometimes, confidence=tells)
    propose = drafter.propose
    drafter.propose = lambda context, *a: (place.append(context.length + 1), propose(context, *a))[
        1
    ]
    curve = CostCurve(tuple(0.01 + 0.004 * k for k in range(8)), (0.001,) * 7, look=0.0001)
    rounds = check_run(pair_with(target, drafter, curve=curve), reference, 300, seed=1,
                       cutoff="auto")  # fmt: skip
    looked = [r for r in rounds if r.looked]
    assert len(looked) > 0.5 * len(rounds)
    assert {r.verified == 0 for r in looked} == {True, False}


def test_context_waits_while_standing_down():
    """No work for the drafter in a plain step, bounded memory, and nothing lost (P70)."""
    target = tiny_target(2)
    drafter = random_dspark(target, 1)
    pair = pair_with(target, drafter, curve=HOPELESS)
    extend, rows = drafter.extend, []

    def watched(context, features, following):
        rows.append(following.shape[0])
        assert {f.shape[0] for f in features} == {following.shape[0]}
        extend(context, features, following)

    drafter.extend = watched
    reference = plain(target, [1, 2, 3], 200)
    check_run(pair, reference, 200, cutoff="auto")
    assert rows[:2] == [2, 1], "the prompt goes in at once"
    assert set(rows[2:-1]) == {64} and sum(rows) == 3 + 199


def test_context_is_complete_when_drafting_comes_back():
    """After plain steps a block is drafted as if every round had told the drafter."""
    target = tiny_target(2)
    pair = pair_with(target, random_dspark(target, 1))

    def proposal(cutoff):
        run = Run(pair, [1, 2, 3], Options.of(max_tokens=60, cutoff=cutoff))
        list(run.prefill())
        state = run.state
        while len(state.tokens) < 30:
            run.round()
        state.catch_up()
        drawn = pair.drafter.propose(state.context, state.tokens[-1], 7, 7, _best)
        return state.tokens, state.context.length, drawn.tokens.tolist()

    assert proposal("fixed:0") == proposal("fixed:0")
    tokens, length, drafts = proposal("fixed:0")
    assert length == len(tokens) - 1

    def told(count):
        context = pair.drafter.start()
        _, features = pair.tapped(mx.array(tokens[:count]), target.new_cache())
        pair.drafter.extend(context, features, mx.array(tokens[1 : count + 1]))
        return pair.drafter.propose(context, tokens[-1], 7, 7, _best).tokens.tolist()

    assert drafts == told(len(tokens) - 1)


def _best(logits):
    return mx.argmax(logits, axis=-1), None


def test_hindsight_is_refused_when_sampling():
    pair = scripted("oracle", DEAR, falling)
    with pytest.raises(OptionError, match="distribution of sampled text"):
        stream(pair, [1, 2, 3], cutoff="hindsight", temperature=1.0)
    assert rounds_of(pair, cutoff="hindsight", max_tokens=30)


def test_nothing_is_measured_for_a_policy_that_needs_no_costs(monkeypatch):
    pair = scripted("oracle", DEAR)
    pair.tuning.curves.clear()
    monkeypatch.setattr("dspark_mlx.decisions.ensure_curve", lambda pair: 1 / 0)
    assert rounds_of(pair, cutoff="full", max_tokens=20)
    with pytest.raises(ZeroDivisionError):
        rounds_of(pair, cutoff="auto", max_tokens=20)
