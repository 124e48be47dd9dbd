"""Chats: whatever ended the last turn, the next is what a fresh process says (P13 to P16)."""

import dataclasses

import pytest

import dspark_mlx.choice
from dspark_mlx import ChatSession, Prefilled, Prefilling, Round
from dspark_mlx.errors import OptionError, SessionError
from tests.chats import (
    FIRST,
    PAIRS,
    SECOND,
    THIRD,
    TURN,
    Broken,
    check_turn,
    counted,
    failing,
    fresh,
    pair_named,
    scripted_pair,
    teach,
)

BOTH = pytest.mark.parametrize("name", ["qwen3", "gemma4"])
EVERY = pytest.mark.parametrize("name", PAIRS)
USER = [{"role": "user", "content": FIRST}]


def shared(session):
    """Positions that the next turn should find, where the answer is templated as it was said."""
    return len(session.tokens) - 1


@EVERY
def test_three_turns(name, monkeypatch):
    """Turns 2 and 3 process only what is new; the drafter's context goes along (P15)."""
    pair = pair_named(name)
    session = ChatSession(pair)
    check_turn(session, FIRST)
    for text in (SECOND, THIRD):
        want = shared(session)
        with monkeypatch.context() as patch:
            widths = counted(pair, patch)
            seen = check_turn(session, text)
        assert seen.cached >= want - 1
        ours = len(widths) // 2 + 1  # the fresh run's forwards come first
        assert sum(widths[ours - 1 :][:2]) <= seen.prompt
        assert session.room == pair.target.context_limit - len(session.tokens)
    assert [m["role"] for m in session.messages] == ["user", "assistant"] * 3


@BOTH
def test_new_tokens_only(name, monkeypatch):
    """The target's forwards of turn 2 cover exactly what was not in the cache."""
    pair = pair_named(name)
    session = ChatSession(pair, max_tokens=TURN, cutoff="full")
    session.send(FIRST)
    widths = counted(pair, monkeypatch)
    events = session.stream(SECOND)
    first = next(e for e in events if isinstance(e, Prefilled))
    assert sum(widths) == first.prompt_tokens - first.cached_tokens < first.prompt_tokens / 2


def test_without_a_drafter():
    session = ChatSession(dataclasses.replace(pair_named("qwen3"), drafter=None))
    for text in (FIRST, SECOND, THIRD):
        check_turn(session, text, max(shared(session) - 1, 0))


@BOTH
def test_after_a_stop_token_at_any_block_position(name):
    """(a): as an accepted draft at block position 0 to 6, and as the token of the prefill."""
    pair = scripted_pair(name)
    tokens, ends = fresh(pair_named(name), USER).answer.tokens, set()
    prompt = fresh(pair, USER, max_tokens=1).prompt
    for offset, token in enumerate(tokens[:9]):
        if token in tokens[:offset]:
            continue
        stopping = dataclasses.replace(pair, stop_ids=frozenset({token}))
        session = ChatSession(stopping, max_tokens=TURN, cutoff="full")
        teach(pair, session._ids(USER), tokens)
        answer = session.send(FIRST)
        assert (answer.tokens, answer.finish_reason) == (tokens[: offset + 1], "stop")
        assert answer.stats.accepted == min(offset, 7)  # all of one block
        ends.add(offset)
        check_turn(session, SECOND, prompt - 1)
    assert {0, 1, 2, 3, 5, 6, 7} <= ends


@pytest.mark.parametrize("name", ["qwen3", "gemma4", "llama"])
def test_after_max_tokens_inside_a_block(name):
    """(b)"""
    for limit in range(1, 10):
        session = ChatSession(pair_named(name))
        answer = session.send(FIRST, max_tokens=limit)
        assert (len(answer.tokens), answer.finish_reason) == (limit, "length")
        check_turn(session, SECOND, len(session._ids(USER)) - 1)


@BOTH
def test_after_a_stop_string_inside_a_block(name):
    """(c): the text ends in front of it, and what was said so far stays."""
    pair = scripted_pair(name)
    whole = fresh(pair_named(name), USER).answer
    for begin in range(0, len(whole.text) - 2, 2):
        stop = whole.text[begin : begin + 2]
        session = ChatSession(pair, max_tokens=TURN, cutoff="full")
        teach(pair, session._ids(USER), whole.tokens)
        answer = session.send(FIRST, stop=stop)
        assert answer.text == whole.text[: whole.text.index(stop)]
        assert answer.finish_reason == "stop"
        assert session.messages[-1]["content"] == answer.text
        check_turn(session, SECOND, len(session._ids(USER)) - 1)


@EVERY
def test_after_closing_between_any_two_yields(name):
    """(d)"""
    pair = pair_named(name)
    whole = len(list(ChatSession(pair).stream(FIRST, max_tokens=TURN, cutoff="full")))
    for count in range(whole + 1):
        session = ChatSession(pair)
        events = session.stream(FIRST, max_tokens=TURN, cutoff="full")
        seen = [next(events) for _ in range(count)]
        events.close()
        text = "".join(e.text for e in seen if isinstance(e, Prefilled | Round))
        told = any(isinstance(e, Prefilled) for e in seen)
        want = [*USER, {"role": "assistant", "content": text}] if told else []
        assert session.messages == want
        check_turn(session, SECOND, shared(session) // 2 if told else 0)


PLACES = ["draft", "layer", "target", "extend", "judge", "settle", "eval", "half"]


def break_in(place, after, session, patch):
    """Make one step of the session break at call number `after`."""
    pair, state = session.pair, session._state
    holders = {
        "draft": (pair.drafter, "propose"),
        "extend": (pair.drafter, "extend"),
        "judge": (dspark_mlx.choice, "verify_greedy"),
        "settle": (state.cache, "keep"),
        "eval": (dspark_mlx.sync.Host, "wait"),
    }
    if place == "target":
        patch.setitem(pair.__dict__, "tapped", failing(pair.tapped, after))
    elif place == "half":  # the forward breaks off with some of the caches grown
        growing = [e for e in state.cache.entries if hasattr(e, "update_and_fetch")]
        entry = growing[len(growing) // 2]
        grow = type(entry).update_and_fetch
        calls = iter(range(10_000))

        def broken(self, *rows):
            if self is entry and next(calls) == after:
                raise Broken
            return grow(self, *rows)

        patch.setattr(type(entry), "update_and_fetch", broken)
    elif place == "layer":  # the drafter breaks off with some of its layers done
        kind = type(pair.drafter.layers[-1])
        patch.setattr(kind, "__call__", failing(kind.__call__, 2 * after + 1))
    else:
        holder, method = holders[place]
        patch.setattr(holder, method, failing(getattr(holder, method), after))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (name, place)
        for name in PAIRS
        for place in (PLACES if name != "eagle3" else ("draft", "layer", "extend", "settle"))
    ],
)
def test_after_an_error_anywhere(name, place, monkeypatch):
    """(e): in draft, verify, sampling, commit or evaluation, an error or an interrupt."""
    pair = pair_named(name)
    for after in (0, 2):
        session = ChatSession(pair, max_tokens=3 * TURN, cutoff="full")
        session.send(FIRST, max_tokens=5)
        before = session.messages
        with monkeypatch.context() as patch, pytest.raises(Broken):
            break_in(place, after, session, patch)
            for _ in session.stream(SECOND):
                pass
        assert session.messages[: len(before)] == before
        check_turn(session, THIRD, 4)


@EVERY
def test_an_error_costs_no_more_than_the_broken_step(name, monkeypatch):
    """Settled positions are still there, where a window was not overwritten in place."""
    session = ChatSession(pair_named(name), max_tokens=3 * TURN, cutoff="full")
    session.send(FIRST, max_tokens=5)
    with monkeypatch.context() as patch, pytest.raises(Broken):
        break_in("judge", 3, session, patch)
        session.send(SECOND)
    assert session.messages[-1]["role"] == "assistant"
    check_turn(session, THIRD, len(session._ids(session.messages[:-1])) - 1)


@EVERY
def test_regenerate_and_edit(name):
    """Cut back to any earlier turn (P16: a window that wrapped is not cut, but built again)."""
    session = ChatSession(pair_named(name), max_tokens=TURN, cutoff="full")
    answers = [session.send(text).tokens for text in (FIRST, SECOND, THIRD)]
    for turn in (2, -1, 1, 0):
        session_then = session.fork()
        kept = session.messages[: 2 * (turn % 3) + 2]
        again = list(session_then.regenerate(turn))
        assert session_then.messages == kept
        tokens = [again[0].token, *(t for e in again if isinstance(e, Round) for t in e.tokens)]
        assert tokens == answers[turn]
    for turn, text in ((2, "Where?"), (1, "And 5, or 4?"), (0, "Who are you?")):
        other = session.fork()
        other.cut(turn)
        assert other.messages == session.messages[: 2 * turn]
        before = len(other._ids([*other.messages, *USER])) - len(other._ids(USER))
        check_turn(other, text, 0 if name == "gemma4" else before)
        edited = session.fork()
        list(edited.edit(turn, text))
        assert edited.messages == other.messages
    assert [m["content"] for m in session.messages[::2]] == [FIRST, SECOND, THIRD]


@pytest.mark.parametrize("turn", [3, -4])
def test_no_such_turn(turn):
    session = ChatSession(pair_named("qwen3"), messages=USER)
    with pytest.raises(OptionError, match=f"no turn {turn}: the session has 1"):
        session.cut(turn)


def test_a_turn_without_a_token_never_happened(monkeypatch):
    pair = pair_named("qwen3")
    session = ChatSession(pair, messages=[*USER, {"role": "assistant", "content": "7"}])
    before = session.messages
    assert session.send(FIRST, max_tokens=0).tokens == []
    with monkeypatch.context() as patch, pytest.raises(Broken):
        break_in("target", 0, session, patch)
        session.send(FIRST)
    assert session.messages == before
    with pytest.raises(OptionError):
        session.stream(FIRST, max_tokens=-2)
    with pytest.raises(TypeError, match="max_token;"):
        session.stream(FIRST, max_token=2)
    check_turn(session, FIRST)


def test_a_new_answer_ends_the_one_before():
    session = ChatSession(pair_named("qwen3"), max_tokens=TURN, cutoff="full")
    old = session.stream(FIRST)
    said = [next(old).text, next(old).text]
    new = session.stream(SECOND)
    with pytest.raises(SessionError, match="has gone on"):
        next(old)
    assert session.messages[-1]["content"] == "".join(said)
    list(new)
    assert [m["content"] for m in session.messages[::2]] == [FIRST, SECOND]
    check_turn(session, THIRD)


def test_cancelled_between_prefill_chunks():
    """A long prompt gives control back between chunks; what was done is kept."""
    session = ChatSession(pair_named("qwen3"), prefill_step_size=4)
    events = session.stream(FIRST)
    seen = [next(events), next(events)]
    events.close()
    assert [type(e) for e in seen] == [Prefilling] * 2
    assert [e.done for e in seen] == [4, 8]
    assert session.messages == []
    check_turn(session, FIRST, 8, prefill_step_size=2048)


def test_conversation_reaches_the_context_limit():
    """A clear message, and the session stays usable (P86)."""
    pair = pair_named("qwen3")
    pair.target.text_config["max_position_embeddings"] = 64
    try:
        session = ChatSession(pair)
        session.send(FIRST, max_tokens=20)
        session.send(SECOND, max_tokens=None)
        assert session.room == 0
        before = session.messages
        with pytest.raises(OptionError, match="room for 64; shorten it"):
            session.send(THIRD)
        assert session.messages == before
        session.cut(1)
        check_turn(session, SECOND, max_tokens=8)
    finally:
        pair.target.text_config["max_position_embeddings"] = 1024
