"""What a generation costs: target calls and their widths, host waits, prefill in chunks."""

import functools

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from dspark_mlx import Finished, Prefilled, Round, generate, stream
from dspark_mlx.drafters.dspark import BlockContext
from dspark_mlx.options import Options
from dspark_mlx.run import run_events
from tests.checks import Waits, check_run
from tests.drafters import random_dspark
from tests.fakes import ScriptedDrafter, falling, pair_with, plain, scripts, sure, tiny_target
from tests.markov import markov_target, random_table

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1, 3, 5, 7, 9, 11, 2, 4]


@functools.cache
def recorded():
    target = markov_target(random_table(0, 12))
    return target, plain(target, PROMPT, 60)


def scripted(script="oracle", confidence=None, **more):
    target, reference = recorded()
    drafter = ScriptedDrafter(target, scripts(reference, 12)[script], confidence=confidence, **more)
    return pair_with(target, drafter)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("script", ["oracle", "first 2 right", "wrong"])
@pytest.mark.parametrize(
    ("options", "per_round"),
    [
        ({"cutoff": "full"}, 1),
        ({"cutoff": "fixed:2"}, 1),
        ({"cutoff": "fixed:0"}, 1),
        ({"cutoff": "threshold:0"}, 1),
        ({"cutoff": "threshold:0.75"}, 2),
        ({"logprobs": True}, 1),
        ({"profile": True}, 3),
        ({"profile": True, "cutoff": "threshold:0.75"}, 4),
        ({"top_p": 0.9, "top_k": 5, "min_p": 0.01}, 1),
        ({"prefill_step_size": 4}, 1),
    ],
)
def test_one_wait_per_round(temperature, script, options, per_round, monkeypatch):
    """`syncs` is the truth, and nothing else waits for the device."""
    pair = scripted(script, falling)
    options = {"cutoff": "full"} | options
    checked = Options.of(max_tokens=40, temperature=temperature, seed=1, **options)
    waits = Waits(monkeypatch)
    events = list(run_events(pair, PROMPT, checked))
    monkeypatch.undo()
    rounds = [e for e in events if isinstance(e, Round)]
    chunks = -(-(len(PROMPT) - 1) // checked.prefill_step_size)
    drafting = sum(bool(r.proposed) for r in rounds)
    by_threshold = drafting if "threshold:0.75" in options.values() else 0
    by_profile = 2 * len(rounds) if "profile" in options else 0
    assert events[-1].syncs == chunks + 1 + len(rounds) + by_threshold + by_profile
    assert events[-1].syncs <= chunks + 1 + per_round * len(rounds)
    assert waits.evals == events[-1].syncs
    assert waits.strays == []


def test_real_drafter_waits_once(monkeypatch):
    target = tiny_target(0)
    pair = pair_with(target, random_dspark(target, 1))
    for options in ({}, {"temperature": 1.0, "seed": 1}):
        with monkeypatch.context() as patch:
            waits = Waits(patch)
            events = list(stream(pair, [1, 2, 3], max_tokens=12, cutoff="full", **options))
        assert waits.evals == events[-1].syncs == 2 + len(events) - 2
        assert waits.strays == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cutoff", ["full", "fixed:2", "threshold:0.75", "threshold:0.95"])
def test_verify_width(cutoff, temperature):
    """One target call per round, of the kept drafts and the anchor (P71)."""
    pair, log = scripted(confidence=falling), recorded()[0].model.log
    log.calls.clear()
    events = list(
        stream(pair, PROMPT, max_tokens=40, cutoff=cutoff, temperature=temperature, seed=3)
    )
    rounds = [e for e in events if isinstance(e, Round)]
    kept = {"full": 7, "fixed:2": 2, "threshold:0.75": 2, "threshold:0.95": 0}[cutoff]
    assert log.calls == [(0, 18), (18, 1)] + [(r.anchor_position, r.verified + 1) for r in rounds]
    assert all(r.verified == min(kept, len(r.proposed)) for r in rounds)
    assert all(len(r.tokens) <= r.verified + 1 for r in rounds)
    if temperature == 0:
        assert all(len(r.tokens) == r.verified + 1 for r in rounds)
        if cutoff.startswith("threshold"):
            assert all(len(r.proposed) == 7 for r in rounds[:4]), "cut before drafting?"


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("chunk", [1, 4, 2048])
def test_prefill_calls_are_those_of_mlx_lm(length, chunk):
    """The same split, so that the first logits are the same bits (P03)."""
    target, log = recorded()[0], recorded()[0].model.log
    log.calls.clear()
    steps = generate_step(mx.array(PROMPT[:length]), target.model, max_tokens=1,
                          prefill_step_size=chunk)  # fmt: skip
    want = [token for token, _ in steps]
    calls = [call for call in log.calls if call[0] < length]  # mlx-lm runs one step ahead
    for pair in (scripted(), pair_with(target)):
        log.calls.clear()
        answer = generate(pair, PROMPT[:length], max_tokens=1, prefill_step_size=chunk)
        assert (answer.tokens, log.calls) == (want, calls)


def test_first_logits_are_the_same_bits():
    target = tiny_target(1)
    for length in (1, 2, 3, 5, 9):
        _, row = next(generate_step(mx.array(PROMPT[:length]), target.model, max_tokens=1,
                                    prefill_step_size=4))  # fmt: skip
        pair = pair_with(target, random_dspark(target, 1))
        events = stream(pair, PROMPT[:length], prefill_step_size=4, logprobs=True)
        event = next(e for e in events if isinstance(e, Prefilled))
        assert event.logprob == float(np.array(row)[event.token])


def test_chunks_do_not_matter():
    """Tokens and every proposal are the same for any chunk size (P20)."""
    target = tiny_target(2)
    reference = plain(target, PROMPT, 24)
    dspark = pair_with(target, random_dspark(target, 1))
    oracle = ScriptedDrafter(target, scripts(reference, 80)["first 3 right"])
    proposals = set()
    for chunk in (1, 2, 3, 7, 18, 19, 4096):
        rounds = check_run(dspark, reference, 24, prefill_step_size=chunk)
        proposals.add(tuple(r.proposed for r in rounds))
        check_run(pair_with(target, oracle), reference, 24, prefill_step_size=chunk)
        assert oracle.memories[-1].proposals[0] == (19, 7, 7)
    assert len(proposals) == 1


def test_context_length_of_the_real_drafter(monkeypatch):
    """At each proposal it covers exactly what the target's cache holds, each layer once."""
    target = tiny_target(2)
    drafter = random_dspark(target, 1)
    propose, seen = drafter.propose, []

    def watched(context, anchor, slots, count, pick):
        cache = target.caches[-1].length
        assert context.length == cache
        proposal = propose(context, anchor, slots, count, pick)
        assert {c.offset for c in context.caches} == {context.length} == {cache}
        seen.append(cache)
        return proposal

    monkeypatch.setattr(drafter, "propose", watched)
    for chunk in (3, 4096):
        events = stream(
            pair_with(target, drafter), PROMPT, max_tokens=12, prefill_step_size=chunk,
            cutoff="full",
        )  # fmt: skip
        rounds = [e for e in events if isinstance(e, Round)]
        assert seen == [r.anchor_position for r in rounds if r.proposed]
        seen.clear()


def test_context_catches_up_without_blocks(monkeypatch):
    """A drafter that is never asked is evaluated all the same, or the lazy graph would grow."""
    target = tiny_target(2)
    drafter = random_dspark(target, 1)
    evaluate, handed, evaluated = mx.eval, [], []
    arrays_of = BlockContext.arrays
    monkeypatch.setattr(
        BlockContext, "arrays", lambda self: handed.append(arrays_of(self)) or handed[-1]
    )
    monkeypatch.setattr(mx, "eval", lambda arrays: evaluated.append(arrays) or evaluate(arrays))
    for event in stream(pair_with(target, drafter), [1], max_tokens=140, cutoff="fixed:0"):
        if isinstance(event, Round):
            assert len(handed) == event.index
            assert {id(a) for a in handed[-1]} <= {id(a) for a in evaluated[-1]}
            # 64 positions go in at a time: pending first, then keys and values of two layers
            assert len(handed[-1]) == (1 if event.index <= 64 else 5)


def test_seconds_are_split_only_in_a_profiled_run():
    for profile in (False, True):
        first, *rounds, last = stream(
            scripted(), PROMPT, max_tokens=20, profile=profile, cutoff="full"
        )
        assert isinstance(first, Prefilled) and isinstance(last, Finished)
        for r in rounds:
            assert (r.draft_seconds is not None) == (r.verify_seconds is not None) == profile
            if profile:
                assert 0 < r.draft_seconds + r.verify_seconds <= r.seconds


def test_sure_confidence_is_reported():
    rounds = [
        e
        for e in stream(scripted(confidence=sure(0.7)), PROMPT, cutoff="full")
        if isinstance(e, Round)
    ]
    for r in rounds:
        assert r.confidence is None or r.confidence == pytest.approx([0.7] * len(r.proposed))
    assert rounds[0].confidence is not None
