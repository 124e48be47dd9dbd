"""A chat of many turns over one growing cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import mlx.core as mx

from . import session_files
from .api import Generation
from .errors import OptionError, SessionError
from .events import Event, Prefilled, Prefilling, Round
from .options import OptionArgs, Options
from .pair import Pair
from .prompt import Messages, prompt_ids
from .run import run_events
from .state import State
from .text import shared_length


class ChatSession:
    """Messages, and what target and drafter remember of them, in agreement after any ending.

    Each turn templates the whole conversation anew and processes what the state does not share
    with it: the answer is the one that a fresh process would give, whether the last turn ended
    by itself, was closed between two events, or broke off with an error. `messages` changes with
    the first token of an answer; a turn that gave none never happened. A partial answer stays,
    with a thought that was cut short closed.

    Starting an answer ends the one before it. A session is used by one thread at a time.
    """

    def __init__(
        self,
        pair: Pair,
        system: str | None = None,
        *,
        messages: Messages = (),
        thinking: bool | None = None,
        control_tokens: bool = False,
        **options: Unpack[OptionArgs],
    ) -> None:
        """`messages` is an earlier conversation; `options` are the defaults of every turn.

        Raises OptionError where the chat template refuses the messages.
        """
        self.pair, self.thinking, self.control_tokens = pair, thinking, control_tokens
        Options.of(**options)
        self._options: dict[str, Any] = dict(options)
        first = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, Any]] = [*first, *(dict(m) for m in messages)]
        self._state = State(pair)
        self._turn: object = None
        self._stepping = threading.Lock()
        if self._messages:
            self._ids([*self._messages, _user("a")])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation, system message included (copies)."""
        return [dict(m) for m in self._messages]

    @property
    def tokens(self) -> list[int]:
        """The token record: what the last prompt and answer were made of."""
        return list(self._state.tokens)

    @property
    def room(self) -> int | None:
        """Tokens until the target's context is full; None where it has no limit."""
        limit = self.pair.target.context_limit
        return None if limit is None else max(limit - len(self._state.tokens), 0)

    def stream(self, text: str, **options: Unpack[OptionArgs]) -> Iterator[Event]:
        """Answer `text`; yields the events of `stream`. Bad options raise at the call."""
        return self._answer([*self._messages, _user(text)], options)

    def send(self, text: str, **options: Unpack[OptionArgs]) -> Generation:
        """Run `stream` to its end."""
        return Generation.of(self.stream(text, **options), self._wants_logprobs(options))

    def regenerate(self, turn: int = -1, **options: Unpack[OptionArgs]) -> Iterator[Event]:
        """Answer turn `turn` (counted from 0, or from the end) anew; later turns go."""
        return self._answer(self._messages[: self._place(turn) + 1], options)

    def edit(self, turn: int, text: str, **options: Unpack[OptionArgs]) -> Iterator[Event]:
        """Put `text` in place of what the user said in a turn, and answer it; later turns go."""
        return self._answer([*self._messages[: self._place(turn)], _user(text)], options)

    def cut(self, turn: int) -> None:
        """Drop a turn and all after it."""
        self._messages = self._messages[: self._place(turn)]
        self._turn = None

    def fork(self) -> ChatSession:
        """An independent session with the same conversation, settings and memory."""
        with self._step():
            other = ChatSession(self.pair, thinking=self.thinking)
            other.control_tokens, other._options = self.control_tokens, dict(self._options)
            other._messages = self.messages
            other._state = self._state.fork()
        return other

    def prepare(self) -> int:
        """Process now what is certain of the next prompt; returns how many tokens that was.

        Worth it before `fork`, for a system message that many sessions share.
        """
        ids, other = (self._ids([*self._messages, _user(text)]) for text in ("a", "1"))
        certain = ids[: shared_length(ids, other)]
        if not certain:
            return 0
        settings = Options.of(**(self._options | {"max_tokens": 1}))
        with self._step():
            self._turn = None
            # the token that comes of it means nothing; what counts is the prompt in front of it
            events = run_events(
                self.pair, certain, settings, state=self._state, borders=[len(certain) - 1]
            )
            stats = Generation.of(events).stats
            self._state.tokens = certain
        return stats.prompt_tokens - stats.cached_tokens

    def save(self, path: str | Path) -> None:
        """Write a folder that `load` reads back; it replaces an older one of a session."""
        with self._step():
            head = {"thinking": self.thinking, "control_tokens": self.control_tokens}
            session_files.save(Path(path), self._state, {**head, "messages": self._messages})

    @classmethod
    def load(cls, pair: Pair, path: str | Path, **options: Unpack[OptionArgs]) -> ChatSession:
        """Read what `save` wrote, for the same target and drafter; PairError for others."""
        state, head = session_files.load(Path(path), pair)
        session = cls(pair, thinking=head["thinking"], **options)
        session.control_tokens = head["control_tokens"]
        session._messages, session._state = head["messages"], state
        return session

    def _answer(self, asked: list[dict[str, Any]], options: OptionArgs) -> Iterator[Event]:
        settings = Options.of(**self._options | options)
        ids = self._ids(asked)
        borders = () if self._state.cache.trims_freely else self._borders(asked, ids)
        events = run_events(self.pair, ids, settings, state=self._state, borders=borders)
        self._turn = object()
        return self._turn_events(events, self._turn, asked, self._opens_thought(ids))

    def _turn_events(
        self, events: Iterator[Event], turn: object, asked: list[dict[str, Any]], opened: bool
    ) -> Iterator[Event]:
        text = ""
        while True:
            with self._step():
                if self._turn is not turn:
                    raise SessionError("the session has gone on: this answer has ended")
                event = next(events, None)
                if isinstance(event, Prefilled | Round):
                    text += event.text
                    answer = {"role": "assistant", "content": self._closed(text, opened)}
                    self._messages = [*asked, answer]
                if isinstance(event, Prefilling | Prefilled | Round):
                    # nothing lazy stays: the next event may be asked for by another thread
                    mx.async_eval(*self._state.arrays())
            if event is None:
                return
            yield event

    def _step(self) -> _Exclusive:
        return _Exclusive(self._stepping)

    def _ids(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return prompt_ids(
            self.pair,
            messages=messages,
            thinking=self.thinking,
            control_tokens=self.control_tokens,
        )

    def _borders(self, asked: list[dict[str, Any]], ids: list[int]) -> list[int]:
        """Where later prompts may part from this one, for caches that cannot be cut anywhere.

        Ahead of what the user says, to edit it; and behind it, where the template begins an
        answer: for a new one, or because it writes that beginning otherwise in later turns.
        """
        text = "b" if asked[-1]["content"][:1] == "a" else "a"
        edited = self._ids([*asked[:-1], _user(text)])
        later = self._ids([*asked, {"role": "assistant", "content": "a"}, _user("a")])
        return [max(shared_length(ids, other) - 1, 0) for other in (edited, later)]

    def _place(self, turn: int) -> int:
        """Index of a turn's user message."""
        places = [i for i, m in enumerate(self._messages) if m["role"] == "user"]
        if not -len(places) <= turn < len(places):
            raise OptionError(f"there is no turn {turn}: the session has {len(places)}")
        return places[turn]

    def _opens_thought(self, ids: list[int]) -> bool:
        """Whether a prompt ends inside a thought that its template opened."""
        tokenizer = self.pair.tokenizer
        if not tokenizer.has_thinking:
            return False
        return tokenizer.rfind_think_start(ids) > tokenizer.rfind_think_end(ids)

    def _closed(self, text: str, opened: bool) -> str:
        """An answer so far, with the end of a thought that is still open."""
        tokenizer = self.pair.tokenizer
        if not tokenizer.has_thinking:
            return text
        start, end = text.rfind(tokenizer.think_start), text.rfind(tokenizer.think_end)
        open_ = start > end or (opened and end < 0)
        return text + tokenizer.think_end if open_ else text

    def _wants_logprobs(self, options: OptionArgs) -> bool:
        return bool((self._options | options).get("logprobs"))


class _Exclusive:
    """Holds a lock that nobody else may wait for: a session is used by one thread at a time."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise SessionError("this session is busy in another thread; wait for it")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
