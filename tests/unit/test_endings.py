"""How a generation ends: stop tokens, limits, a consumer that leaves, an error inside."""

import dataclasses
import functools
import itertools

import mlx.core as mx
import pytest

import dspark_mlx.choice
from dspark_mlx import Failed, Finished, Prefilled, generate, stream, stream_generate
from dspark_mlx.errors import OptionError
from dspark_mlx.options import Options
from dspark_mlx.run import run_events
from dspark_mlx.sampling import KeyedDraws
from tests.checks import check_run
from tests.drafters import random_dspark
from tests.fakes import ScriptedDrafter, offsets, pair_with, plain, scripts, tiny_target
from tests.markov import markov_target, random_table

LENGTH = 32


@functools.cache
def recorded():
    target = tiny_target(0)
    return target, plain(target, [7, 3, 9], LENGTH)


def pair_of(script, stops=(), block=7):
    target, reference = recorded()
    if script == "dspark":
        return pair_with(target, random_dspark(target, 2, block=3), stops)
    script = scripts(reference, target.vocab_size)[script]
    return pair_with(target, ScriptedDrafter(target, script, block=block), stops)


def first_uses():
    """Offset in the continuation -> a token that occurs there for the first time."""
    tokens = recorded()[1].tokens
    return {k: t for k, t in enumerate(tokens) if t not in tokens[:k]}


@pytest.mark.parametrize("script", ["oracle", "first 3 right", "first 0 right"])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_stop_token_anywhere(script, block):
    """Accepted, as bonus, as correction, or of the prefill: it ends the tokens, not the text."""
    origins = set()
    for offset, token in first_uses().items():
        if offset > 20:
            break
        pair = pair_of(script, [token, 79], block)
        rounds = check_run(pair, recorded()[1], 25)
        answer = generate(pair, recorded()[1].prompt, max_tokens=25)
        assert answer.tokens[-1] == token
        assert len(answer.tokens) == offset + 1
        assert answer.text == pair.tokenizer.decode(answer.tokens[:-1])
        assert answer.finish_reason == "stop"
        origins |= {rounds[-1].origin} if rounds else {"prefill"}
    right = {"oracle": block, "first 3 right": 3, "first 0 right": 0}[script]
    drafted = {None} if right else set()  # the stop token was an accepted draft
    assert origins == {"prefill", "bonus" if right >= block else "correction"} | drafted


def test_stop_token_on_the_limit():
    for offset, token in first_uses().items():
        if 0 < offset < 12:
            for limit in (offset, offset + 1, offset + 2):
                check_run(pair_of("oracle", [token]), recorded()[1], limit)


def test_stop_token_cut_off_by_the_limit_is_not_judged():
    """`length` when the limit falls just before the stop token."""
    offset, token = next((k, t) for k, t in first_uses().items() if k > 4)
    answer = generate(pair_of("oracle", [token]), recorded()[1].prompt, max_tokens=offset)
    assert (len(answer.tokens), answer.finish_reason) == (offset, "length")


def test_rejected_stop_token_does_not_stop():
    """A draft that is a stop token where the target says something else (P31)."""
    target, reference = recorded()
    stop = next(t for t in range(80) if t not in reference.tokens)
    script = scripts(reference, 80)["oracle"]
    says_stop = scripts(plain_of_constant(reference, stop), 80)["oracle"]

    def mixed(position, k, previous):
        return says_stop(position, k, previous) if k == 2 else script(position, k, previous)

    pair = pair_with(target, ScriptedDrafter(target, mixed), [stop])
    rounds = check_run(pair, reference, LENGTH)
    assert any(stop in r.proposed for r in rounds)


def plain_of_constant(reference, token):
    return dataclasses.replace(reference, tokens=[token] * len(reference.tokens))


@pytest.mark.parametrize("max_tokens", [None, -1])
def test_unlimited(max_tokens):
    """To a stop token, or until the target's context is full (P33)."""
    offset, token = max(first_uses().items())
    answer = generate(pair_of("oracle", [token]), recorded()[1].prompt, max_tokens=max_tokens)
    assert (answer.tokens, answer.finish_reason) == (recorded()[1].tokens[: offset + 1], "stop")
    target = tiny_target(0, max_position_embeddings=30)
    drafter = ScriptedDrafter(target, scripts(recorded()[1], 80)["first 3 right"])
    answer = generate(pair_with(target, drafter), recorded()[1].prompt, max_tokens=max_tokens)
    assert answer.tokens == recorded()[1].tokens[:27]
    assert answer.finish_reason == "length"
    with pytest.raises(OptionError, match="30"):
        generate(pair_with(target, drafter), [1] * 30, max_tokens=max_tokens)


def test_zero_and_one_token():
    """No model call for none, no draft call for one."""
    target = markov_target(random_table(0, 8))
    drafter = ScriptedDrafter(target, scripts(plain(target, [1, 2], 4), 8)["oracle"])
    pair = pair_with(target, drafter)
    target.model.log.calls.clear()
    [only] = stream(pair, [1, 2], max_tokens=0)
    assert isinstance(only, Finished)
    assert (only.reason, only.tokens, only.syncs) == ("length", 0, 0)
    assert target.model.log.calls == []
    assert list(stream_generate(pair, [1, 2], max_tokens=0)) == []
    first, last = stream(pair, [1, 2], max_tokens=1)
    assert (first.finish_reason, last.reason, last.tokens) == ("length", "length", 1)
    assert target.model.log.calls == [(0, 1), (1, 1)]
    assert not any(memory.proposals for memory in drafter.memories)


@pytest.mark.parametrize("script", ["first 3 right", "oracle", "dspark"])
def test_consumer_leaves(script):
    """After any number of tokens; what follows is as if nothing had been (P13)."""
    pair, want = pair_of(script), recorded()[1].tokens
    for count in range(1, 26, 3 if script == "dspark" else 1):
        tokens = stream_generate(pair, recorded()[1].prompt, max_tokens=LENGTH)
        assert [next(tokens).token for _ in range(count)] == want[:count]
        tokens.close()
        if count % 8 == 2:
            assert generate(pair, recorded()[1].prompt, max_tokens=LENGTH).tokens == want


def test_caches_are_committed_at_every_yield():
    pair, length = pair_of("first 2 right"), len(recorded()[1].prompt) - 1
    for event in stream(pair, recorded()[1].prompt, max_tokens=LENGTH):
        if not isinstance(event, Finished):
            length += 1 if isinstance(event, Prefilled) else len(event.tokens)
            memory = pair.drafter.memories[-1]
            assert memory.length == memory.cache.length == length
            assert offsets(memory.cache) == {length}


def test_interleaved_runs():
    """Two generations of one pair take turns, with different prompts and options."""
    pair = pair_of("dspark")
    settings = [([7, 3, 9], {}), ([1], {"cutoff": "threshold:0.5", "block_size": 3})]
    alone = [generate(pair, ids, max_tokens=LENGTH, **more).tokens for ids, more in settings]
    runs = [stream_generate(pair, ids, max_tokens=LENGTH, **more) for ids, more in settings]
    together = [[], []]
    while len(together[0]) + len(together[1]) < 2 * LENGTH:
        for run, tokens in zip(runs, together, strict=True):
            tokens += [r.token for r in itertools.islice(run, 3)]
    assert together == alone


class Broken(Exception):
    pass


def failing(function, after):
    """The function, raising at call number `after`."""
    calls = iter(range(1000))

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if next(calls) == after:
            raise Broken("on purpose\nand on two lines")
        return function(*args, **kwargs)

    return wrapped


class FailingDraws(KeyedDraws):
    def __init__(self, seed, name, after):
        super().__init__(seed)
        setattr(self, name, failing(getattr(super(), name), after))


def broken_run(place, after, pair, patch):
    """A run that will raise Broken in the given place."""
    options = Options.of(max_tokens=LENGTH, seed=5)
    if place.startswith("draws"):
        sampled = Options.of(max_tokens=LENGTH, temperature=1.0, seed=5)
        return run_events(pair, [7, 3, 9], sampled, FailingDraws(5, place.split(".")[1], after))
    if place == "draft":
        patch.setattr(pair.drafter, "propose", failing(pair.drafter.propose, after))
    elif place == "target":
        patch.setitem(pair.__dict__, "tapped", failing(pair.tapped, after))
    elif place == "extend":
        patch.setattr(pair.drafter, "extend", failing(pair.drafter.extend, after))
    else:
        patch.setattr(
            dspark_mlx.choice, "verify_greedy", failing(dspark_mlx.choice.verify_greedy, after)
        )
    return run_events(pair, [7, 3, 9], options)


@pytest.mark.parametrize("script", ["first 3 right", "dspark"])
@pytest.mark.parametrize(
    "place", ["draft", "target", "extend", "sampling", "draws.token", "draws.uniforms"]
)
def test_error_inside(place, script, monkeypatch):
    """Failed, then the error itself; the pair is none the worse for it."""
    pair = pair_of(script)
    for after in (0, 3):
        seen = []
        with monkeypatch.context() as patch, pytest.raises(Broken):
            seen.extend(iter_into(seen, broken_run(place, after, pair, patch)))
        assert isinstance(seen[-1], Failed)
        assert not seen[-1].user_error
        assert "Broken: on purpose" in seen[-1].message
        assert not any(isinstance(e, Failed | Finished) for e in seen[:-1])
        assert generate(pair, [7, 3, 9], max_tokens=LENGTH).tokens == recorded()[1].tokens
        sampled = {"max_tokens": 12, "temperature": 1.0, "seed": 5}
        again = [generate(pair, [7, 3, 9], **sampled).tokens for _ in range(2)]
        assert again[0] == again[1]


def iter_into(seen, events):
    """Append events as they come, so that those before an error are kept."""
    for event in events:
        seen.append(event)
    return ()


def test_error_at_evaluation(monkeypatch):
    """An error that only the device reports ends the same way."""
    pair = pair_of("oracle")
    monkeypatch.setattr(mx, "eval", failing(mx.eval, 3))
    seen = []
    with pytest.raises(Broken):
        iter_into(seen, stream(pair, [7, 3, 9], max_tokens=LENGTH))
    assert isinstance(seen[-1], Failed)
    monkeypatch.undo()
    assert generate(pair, [7, 3, 9], max_tokens=LENGTH).tokens == recorded()[1].tokens


def test_failed_message_is_one_line():
    pair = pair_of("oracle")
    seen = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Broken):
        iter_into(seen, broken_run("draft", 1, pair, patch))
    assert "\n" not in seen[-1].message
