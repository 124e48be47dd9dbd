"""Logits processors: mlx-lm's penalties and any function `(tokens, logits) -> logits`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from .errors import OptionError

# (every token before the row [n], the row's logits [1, V]) -> logits [1, V]
Processor = Callable[[mx.array, mx.array], mx.array]


class Processors:
    """Applies processors row by row, each row with the true history in front of it.

    The history stays on the device: a processor of mlx operations costs no synchronisation.
    One that reads values (`tolist`, `item`) waits for the device at every row. Processors must
    not keep a state of their own: rows of rejected drafts pass through them too.
    """

    def __init__(self, processors: Sequence[Processor], history: Sequence[int]) -> None:
        self._processors = tuple(processors)
        self._history = mx.array(list(history), mx.int32) if self._processors else None
        self._block: list[mx.array] = []

    def committed(self, tokens: Sequence[int]) -> None:
        """Add settled tokens to the history."""
        if self._history is not None:
            self._history = mx.concatenate([self._history, mx.array(list(tokens), mx.int32)])
            mx.async_eval(self._history)  # not left lazy: another thread may go on from here
            self._block = []

    def drafted(self, token: mx.array) -> None:
        """Note a draft [1] of the block in progress."""
        self._block.append(token.astype(mx.int32))

    def on_draft(self, logits: mx.array, ids: mx.array | None, vocabulary: int) -> mx.array:
        """The next draft's logits [1, rows]; `ids`: the token of each row, where not its own."""
        if self._history is None:
            return logits
        history = mx.concatenate([self._history, *self._block])
        if ids is None:
            return self._row(history, logits[:])
        everywhere = mx.full((1, vocabulary), -mx.inf, logits.dtype)
        everywhere[:, ids] = logits
        return self._row(history, everywhere)[:, ids]

    def on_target(self, drafts: mx.array, logits: mx.array) -> mx.array:
        """The target's logits [l+1, V] after drafts [l]."""
        if self._history is None:
            return logits
        self._block = []
        history = mx.concatenate([self._history, drafts.astype(mx.int32)])
        before = self._history.size
        rows = [self._row(history[: before + k], logits[k : k + 1]) for k in range(logits.shape[0])]
        return mx.concatenate(rows)

    def _row(self, history: mx.array, logits: mx.array) -> mx.array:
        shape = logits.shape
        for process in self._processors:
            logits = process(history, logits)
            if getattr(logits, "shape", None) != shape:
                name = getattr(process, "__name__", process)
                found = getattr(logits, "shape", type(logits).__name__)
                raise OptionError(f"logits processor {name} returned {found}, expected {shape}")
        return logits
