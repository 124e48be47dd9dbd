"""What target and drafter remember of one token sequence, kept in agreement after any ending.

Everything rests on one number: the first `length` ids of `tokens` are in the target's cache and
in the drafter's context (the newest may still wait to be put there), and nothing else is. A
one-shot generation starts from an empty state; a session goes on from where the last turn ended,
in whatever way it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from .pair import Pair
from .text import shared_length
from .waiting import Waiting

MOST_CHECKPOINTS = 6  # two a turn; each holds a copy of what cannot be cut


class State:
    """One sequence's record, target cache and drafter context."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        # positions past the drafter's own limit are not told to it
        config = None if pair.drafter is None else pair.drafter.config
        self.drafter_limit = None if config is None else config.max_position_embeddings
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        drafter = self.pair.drafter
        self.tokens: list[int] = []  # the record: processed ids, then those still to process
        self.length = 0
        self.cache = self.pair.target.new_cache()
        self.context: Any = None if drafter is None else drafter.start()
        self.waiting = Waiting()
        self.busy = False  # whether a step began and has not been settled
        self._open = False  # whether it came as far as the target
        self._checkpoints: list[tuple[int, Any]] = []

    def begin(self, prompt: Sequence[int], window: int | None = None) -> int:
        """Make `prompt` the record, keeping what is shared; returns the positions kept.

        At least the last token of the prompt stays to be processed. `window` bounds how far
        back the drafter looks.
        """
        self.repair()
        self.busy = True
        # the context pairs each position with the token after it, so that must be shared too
        self._rewind(min(self.length, max(shared_length(self.tokens, prompt) - 1, 0)))
        self.tokens = list(prompt)
        if self.context is not None:
            self.context.window = window
        self.busy = False
        return self.length

    def forward(self, ids: mx.array) -> tuple[mx.array, list[mx.array]]:
        """Run ids [n] after the settled positions -> logits [n, V], features; lazy."""
        self.busy = self._open = True
        return self.pair.tapped(ids, self.cache)

    def settle(self, features: list[mx.array], count: int, wait: bool = False) -> None:
        """Keep the first `count` rows of the last forward, whose tokens `tokens` now holds.

        With `wait` the drafter is told of them later, by `catch_up`.
        """
        length = self.length + count
        self.cache.keep(length)
        self._remember(features, count)
        if self.waiting.full or not wait:
            self.catch_up()
        self.length = length
        self.busy = self._open = False

    def catch_up(self) -> None:
        """Give the drafter what waits for it."""
        if len(self.waiting):
            assert self.pair.drafter is not None
            self.pair.drafter.extend(self.context, *self.waiting.joined())
            self.waiting = Waiting()

    def checkpoint(self) -> None:
        """Remember this place, if the cache could not be cut back to it later."""
        if self.cache.trims_freely:
            return
        self._checkpoints = self._checkpoints[1 - MOST_CHECKPOINTS :]
        self._checkpoints.append((self.length, self.cache.snapshot()))

    def fork(self) -> State:
        """An independent state of the same sequence."""
        self.repair()
        self.catch_up()
        other = State(self.pair)
        other.cache = self.cache.fork()
        other.context = None if self.context is None else self.context.copy()
        other.tokens, other.length = list(self.tokens), self.length
        other._checkpoints = list(self._checkpoints)
        mx.eval(*self.arrays(), *other.arrays())
        return other

    def adopt(self, tokens: Sequence[int], cache: Any, context: Any) -> None:
        """Take on a cache and a context (or None) that hold all but the last of `tokens`."""
        self.tokens, self.cache, self.context = list(tokens), cache, context
        self.length = cache.length
        if not self.length < len(self.tokens):
            raise ValueError(f"{self.length} positions for {len(self.tokens)} tokens")

    def arrays(self) -> list[mx.array]:
        """Everything to evaluate to bring the state up to date on the device."""
        return [*self.cache.arrays(), *self.context_arrays()]

    def context_arrays(self) -> list[mx.array]:
        """The drafter's part of `arrays`."""
        return [] if self.context is None else [*self.context.arrays(), *self.waiting.arrays()]

    def _remember(self, features: list[mx.array], count: int) -> None:
        begin = self.length
        if self.context is None or self.context.length + len(self.waiting) != begin:
            return
        if self.drafter_limit is not None:
            count = min(count, self.drafter_limit - begin)
        if count > 0:
            following = self.tokens[begin + 1 : begin + count + 1]
            self.waiting.add([rows[:count] for rows in features], following)

    def _rewind(self, length: int) -> None:
        """Cut everything back to `length` positions, or less where the cache cannot."""
        good = [c for c in self._checkpoints if c[0] <= length and self.cache.can_restore(c[1])]
        self._checkpoints = good
        if length == self.length:
            return
        if self.cache.can_trim_to(length):
            self.cache.keep(length)
        elif self._checkpoints:
            length, snapshot = self._checkpoints[-1]
            self.cache.restore(snapshot)
        else:
            length, self.cache = 0, self.pair.target.new_cache()
        self.length = length
        self._cut_context()

    def _cut_context(self) -> None:
        """Let the drafter know of nothing beyond `length`."""
        if self.context is not None:
            self.waiting.cut(max(self.length - self.context.length, 0))
            self.context.cut(self.length)

    def repair(self) -> None:
        """After a step that broke off anywhere: back to the settled positions, or to nothing."""
        if not self.busy:
            return
        try:
            if self._open:
                self.cache.undo()
            self.length = self.cache.length
            self._cut_context()
            mx.eval(self.arrays())
        except Exception:  # noqa: BLE001 - whatever is wrong with them, they are not needed
            self.clear()
        self.busy = self._open = False
