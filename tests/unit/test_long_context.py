"""Long prompts: the drafter's window and limit, memory known before it is taken."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest

import dspark_mlx.memory as memory
from dspark_mlx import ChatSession, Round, Stats, generate, stream
from dspark_mlx.drafters import context as context_module
from dspark_mlx.errors import OptionError
from dspark_mlx.summary import summary
from tests.chats import FIRST, SECOND, check_turn, pair_named
from tests.drafters import random_dspark
from tests.fakes import ScriptedDrafter, pair_with, plain, scripts, tiny_target

PROMPT = [int(x) for x in np.random.default_rng(1).integers(0, 80, 90)]
LENGTH = 30


def proposals(pair, prompt=PROMPT, **options):
    events = list(stream(pair, prompt, max_tokens=LENGTH, cutoff="full", **options))
    rounds = [e for e in events if isinstance(e, Round)]
    tokens = [t for e in rounds for t in e.tokens]
    return tokens, [r.proposed for r in rounds], rounds


@pytest.mark.parametrize("name", ["qwen3", "gemma4", "eagle3"])
@pytest.mark.parametrize("window", [1, 5, 16, 40])
def test_window_bounds_memory_and_nothing_else(name, window, monkeypatch):
    """Same tokens as without; proposals do not depend on how the context was filled (P24, P65)."""
    monkeypatch.setattr(context_module, "SLACK", 4)
    pair = pair_named(name)
    prompt = [int(x) for x in np.random.default_rng(2).integers(5, 300, 70)]
    want, _, _ = proposals(pair, prompt, drafter_context=-1)
    contexts, start = [], pair.drafter.start

    def started(width=None):
        contexts.append(start(width))
        return contexts[-1]

    monkeypatch.setattr(pair.drafter, "start", started, raising=False)
    seen = set()
    for chunk in (3, 32, 4096):
        got, proposed, _ = proposals(pair, prompt, drafter_context=window, prefill_step_size=chunk)
        assert got == want
        seen.add(tuple(proposed))
        assert {c.offset for c in contexts[-1].caches} == {contexts[-1].absorbed}
        assert max(c.rows for c in contexts[-1].caches) <= window + 4 + pair.drafter.block_size
    assert len(seen) == 1


def test_window_hides_older_context():
    """A feature before the window moves nothing, one inside it does."""
    target = tiny_target(0, "qwen3", 9)
    drafter = random_dspark(target, 3)
    base = [mx.random.normal((20, 32), key=mx.random.key(i)) for i in range(3)]

    def logits(changed, window=8):
        held, rows = drafter.start(window), []
        parts = [f.at[changed].add(5.0) if changed is not None else f for f in base]
        for begin in (0, 7, 15):
            end = {0: 7, 7: 15, 15: 20}[begin]
            drafter.extend(held, [p[begin:end] for p in parts], mx.zeros((end - begin,), mx.int32))
        drafter.propose(held, 1, 7, 7, lambda x: (rows.append(x), (mx.argmax(x, -1), None))[1])
        return mx.concatenate(rows)

    assert mx.array_equal(logits(11), logits(None))
    assert not mx.array_equal(logits(12), logits(None))
    assert not mx.array_equal(logits(None), logits(None, None))


def test_session_beyond_the_window(monkeypatch):
    """Dropped rows cannot come back after a cut: fewer are looked at, the answer is the same."""
    monkeypatch.setattr(context_module, "SLACK", 4)
    pair = pair_named("qwen3")
    session = ChatSession(pair, drafter_context=20, max_tokens=12, cutoff="full")
    for text in (FIRST, SECOND):
        check_turn(session, text, drafter_context=20)
    first = generate(pair, messages=session.messages[:1], max_tokens=12).tokens
    [event, *rest] = session.regenerate(0)
    assert [event.token, *(t for e in rest[:-1] for t in e.tokens)] == first
    assert max(c.rows for c in session._state.context.caches) <= 20 + 4 + 7


def limited(limit):
    target = tiny_target(0)
    reference = plain(target, PROMPT[:10], 60)
    drafter = ScriptedDrafter(target, scripts(reference, 80)["oracle"], limit=limit)
    return pair_with(target, drafter), reference, drafter


def test_speculation_stands_down_at_the_drafters_limit():
    """Plain beyond it, told, counted, and the drafter's memory does not grow (P21, P23)."""
    pair, reference, drafter = limited(40)
    stats, rounds = Stats(), []
    for event in stream(pair, PROMPT[:10], max_tokens=60, cutoff="full"):
        stats.add(event)
        rounds += [event] if isinstance(event, Round) else []
    assert [t for r in rounds for t in r.tokens] == reference.tokens[1:]
    for r in rounds:
        assert (r.reason == "drafter limit") == (r.anchor_position + 7 > 40) == (not r.proposed)
    assert 0 < stats.past_limit < stats.rounds
    assert drafter.memories[-1].length == 40
    assert f"{stats.past_limit} rounds were plain" in summary(stats, "length")
    # one long prompt does not switch it off for the next one (P22)
    again, _, _ = proposals(pair, PROMPT[:10])
    assert again == reference.tokens[1:LENGTH]
    assert not generate(pair, PROMPT[:10], max_tokens=12).stats.past_limit
    beyond = generate(pair, PROMPT[:50], max_tokens=5).stats
    assert (beyond.past_limit, beyond.proposed) == (beyond.rounds, 0)


@pytest.mark.parametrize("name", ["qwen3", "eagle3"])
def test_speculation_comes_back_when_the_context_is_cut(name, monkeypatch):
    base = pair_named(name)
    monkeypatch.setattr(
        base.drafter, "config",
        dataclasses.replace(base.drafter.config, max_position_embeddings=60),
    )  # fmt: skip
    session = ChatSession(base, max_tokens=20, cutoff="full")
    assert session.send(FIRST).stats.past_limit == 0
    assert session.send(SECOND).stats.past_limit > 0
    assert session._state.context.length <= 60
    assert session.send("Why?").stats.proposed == 0
    session.cut(1)
    seen = check_turn(session, SECOND, 20, max_tokens=8)
    assert seen.answer.stats.proposed > 0


def test_growth_is_what_the_cache_takes():
    """The estimate from shapes against the bytes of a filled cache, both kinds of window."""
    for name in ("qwen3", "gemma4"):
        target = pair_named(name).target
        growth = memory.target_growth(target)
        for length in (256, 512):
            cache = target.new_cache()
            target.tapped()(mx.zeros((length,), mx.int32), cache)
            held = sum(a[..., :1, :].nbytes * rows(entry, length)
                       for entry in cache.entries for a in (entry.keys, entry.values))  # fmt: skip
            assert growth.at(length) == held


def rows(entry, length):
    return min(length, getattr(entry, "max_size", length))


def test_prefill_makes_no_logits_but_the_last():
    """A chunk's logits would be 8 MB here (P63)."""
    target = tiny_target(0, vocab=20_000)
    pair = pair_with(target, pieces=[b"x"] * 20_000)
    generate(pair, [1, 2], max_tokens=1)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    generate(pair, [5] * 201, max_tokens=1, prefill_step_size=100)
    assert mx.get_peak_memory() - before < 3e6


def test_request_that_cannot_fit_is_refused(monkeypatch):
    """With figures, before anything is allocated; all sessions share one budget (P61)."""
    pair = pair_named("qwen3")
    prompt = [5] * 200
    per_token = memory.target_growth(pair.target).at(1)
    monkeypatch.setattr(memory, "budget", lambda: mx.get_active_memory() + 400 * per_token)
    monkeypatch.setitem(pair.__dict__, "tapped", None)  # would fail if called
    with pytest.raises(OptionError) as caught:
        stream(pair, prompt, max_tokens=800, prefill_step_size=16)
    line = str(caught.value)
    assert "1000 positions" in line and line.count("MB") >= 3 and "\n" not in line
    stream(pair, prompt, max_tokens=20, prefill_step_size=16)  # fits


def test_unlimited_ends_where_memory_does(monkeypatch):
    pair = pair_named("qwen3")
    pair = dataclasses.replace(pair, stop_ids=frozenset())
    per_token = memory.target_growth(pair.target).at(1)
    taken = memory.request_bytes(pair, 0, 21, 4096, 16)
    free = taken + 30 * per_token
    monkeypatch.setattr(memory, "available", lambda: free)
    answer = generate(pair, [5] * 20, max_tokens=None, prefill_step_size=16)
    assert 15 <= len(answer.tokens) <= 31
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("value", [0, -2, 1.5, True])
def test_bad_window(value):
    with pytest.raises(OptionError, match="drafter_context must be"):
        stream(pair_named("qwen3"), [1], drafter_context=value)
