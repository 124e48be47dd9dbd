"""Chats for the session tests: pairs, what a fresh process would answer, and broken steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

from dspark_mlx import ChatSession, Generation, Pair, Prefilled, Round, load, stream
from tests.drafters import random_dspark
from tests.fakes import RecordingTarget, ScriptedDrafter, says, tiny_target

FIXTURES = Path(__file__).parent / "fixtures"
FIRST, SECOND, THIRD = "What is 3 + 4?", "And 5?", "Why?"
TURN = 9  # tokens of an answer
DEFAULTS = {"max_tokens": TURN, "cutoff": "full"}  # whole blocks, so that rounds can be compared
VOCAB = 320


def trained(target: str, drafter: str) -> Callable[[], Pair]:
    """A fixture pair."""
    return lambda: load(FIXTURES / target, FIXTURES / drafter)


# name -> how to make the pair; a hybrid is one more line
PAIRS = {
    "qwen3": trained("target-qwen3", "dspark-vanilla"),
    "gemma4": trained("target-gemma4", "dspark-gemma4"),  # windows of 48, which wrap in turn 2
    "eagle3": trained("target-qwen3", "eagle3"),
}


class CharTokenizer:
    """Every id is one character, so that an answer's text becomes the same tokens again.

    `forgets`: earlier answers lose their first half, and each answer begins with a heading.
    """

    bos_token = None
    has_chat_template, has_thinking = True, False
    alphabet = "".join(map(chr, (*range(32, 127), *range(161, 161 + VOCAB - 95))))

    def __init__(self, forgets: bool = False) -> None:
        self.forgets = forgets

    def encode(self, text, add_special_tokens=True):
        return [self.alphabet.index(c) for c in text]

    def decode(self, ids):
        return "".join(self.alphabet[i] for i in ids)

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        parts = [
            f"¶{m['role']}:{m['content'][len(m['content']) // 2 :]}§"
            if self.forgets and m["role"] == "assistant"
            else f"¶{m['role']}:{m['content']}§"
            for m in messages
        ]
        return "".join([*parts, "¶assistant:", "So, " * self.forgets])


def random_pair(target) -> Pair:
    """A random target of VOCAB tokens and a random drafter that can talk."""
    return Pair(target, random_dspark(target, 5), CharTokenizer(), None, frozenset({2}))


PAIRS["llama"] = lambda: random_pair(tiny_target(3, "llama", VOCAB))


@functools.cache
def pair_named(name: str) -> Pair:
    """A pair, made once."""
    return PAIRS[name]()


def scripted_pair(name: str) -> Pair:
    """The target of a fixture pair beside an oracle, which is told what to propose by `teach`."""
    base = pair_named(name)
    target = RecordingTarget(base.target.model, base.target.config)
    return dataclasses.replace(
        base, target=target, drafter=ScriptedDrafter(target, says(lambda p, k: 0, VOCAB))
    )


def teach(pair: Pair, prompt: list[int], tokens: list[int]) -> None:
    """Make a scripted drafter propose `tokens` after the prompt."""
    known = [*prompt, *tokens]
    pair.drafter.script = says(lambda p, k: known[p] if p < len(known) else 0, VOCAB)


@dataclasses.dataclass
class Seen:
    """One turn's events, folded."""

    answer: Generation
    proposed: list[tuple[int, ...]]
    prompt: int = 0
    cached: int = 0

    @classmethod
    def of(cls, events) -> Seen:
        events = list(events)
        rounds = [e for e in events if isinstance(e, Round)]
        first = next(e for e in events if isinstance(e, Prefilled))
        return cls(
            Generation.of(events),
            [r.proposed for r in rounds],
            first.prompt_tokens,
            first.cached_tokens,
        )


def fresh(pair: Pair, messages, **options) -> Seen:
    """The answer of a process that knows nothing yet."""
    return Seen.of(stream(pair, messages=messages, **DEFAULTS | options))


def check_turn(session: ChatSession, text: str, least_cached: int = 0, **options) -> Seen:
    """The session answers `text` as a fresh process does, proposals included."""
    want = fresh(session.pair, [*session.messages, {"role": "user", "content": text}], **options)
    ours = Seen.of(session.stream(text, **DEFAULTS | options))
    assert ours.answer.tokens == want.answer.tokens
    assert ours.answer.text == want.answer.text == session.messages[-1]["content"]
    assert ours.answer.finish_reason == want.answer.finish_reason
    assert (ours.proposed, ours.prompt) == (want.proposed, want.prompt)
    assert ours.cached >= least_cached
    state = session._state
    assert state.length == state.cache.length == len(state.tokens) - 1
    assert state.context is None or state.context.length == state.length
    return ours


class Broken(BaseException):
    """Stands for an error as well as for an interrupt."""


def failing(function, after):
    """The function, raising Broken at call number `after`."""
    calls = iter(range(10_000))

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if next(calls) == after:
            raise Broken
        return function(*args, **kwargs)

    return wrapped


def counted(pair: Pair, patch) -> list[int]:
    """Widths of the target's forwards from here on."""
    widths: list[int] = []
    forward = pair.tapped

    def tapped(ids, cache):
        widths.append(ids.shape[0])
        return forward(ids, cache)

    patch.setitem(pair.__dict__, "tapped", tapped)
    return widths
