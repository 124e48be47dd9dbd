"""The target's cache between rounds: it may grow by a block, then keeps what was accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from .errors import UnsupportedError


class TargetCache:
    """One small adapter over mlx-lm's cache list: everything else sees only lengths.

    Between rounds `length` is the position of the newest committed token, which the target
    has not processed yet.
    """

    def __init__(self, model: nn.Module) -> None:
        self.entries: list[Any] = make_prompt_cache(model)
        self.length = 0
        self._marked = 0
        self._marks: list[Any] = []
        if odd := sorted({type(c).__name__ for c in self.entries if type(c) not in ROLLBACKS}):
            known = ", ".join(kind.__name__ for kind in ROLLBACKS)
            raise UnsupportedError(
                f"this target uses {', '.join(odd)}, from which rejected drafts cannot be removed "
                f"yet; supported caches: {known}"
            )

    def mark(self) -> None:
        """Remember the state before a forward; `keep` can go back to anything after it."""
        self._marked = self.length
        self._marks = [None if type(c) is KVCache else c.state for c in self.entries]

    def grew(self, count: int) -> None:
        """Note that a forward appended `count` positions to every entry."""
        self.length += count

    def keep(self, length: int) -> None:
        """Drop everything after the first `length` positions; checked on every entry."""
        if not self._marked <= length <= self.length:
            raise RuntimeError(f"cannot keep {length} of {self._marked}..{self.length} positions")
        grown, kept = self.length - self._marked, length - self._marked
        for entry, mark in zip(self.entries, self._marks, strict=True):
            if kept < grown:
                ROLLBACKS[type(entry)](entry, mark, grown, kept)
            if entry.offset != length:
                raise RuntimeError(f"{type(entry).__name__} holds {entry.offset}, not {length}")
        self.length = length

    def arrays(self) -> list[mx.array]:
        """Every array to evaluate to bring the cache up to date on the device."""
        return [a for c in self.entries if not c.empty() for a in (c.keys, c.values)]


def _trim(entry: Any, mark: None, grown: int, kept: int) -> None:
    entry.trim(grown - kept)


def _append_again(entry: Any, mark: Any, grown: int, kept: int) -> None:
    """Back to the marked window, then append the accepted rows as a forward of them would.

    A window that wrapped cannot be trimmed: the rejected rows pushed live ones out.
    """
    rows = slice(-grown, kept - grown)  # the newest `grown` rows are the last ones
    keys, values = entry.keys[..., rows, :], entry.values[..., rows, :]
    entry.state = mark
    if kept:
        entry.update_and_fetch(keys, values)


# exact type -> how its newest rows are dropped, all but the first `kept` of `grown`
ROLLBACKS: dict[type, Callable[[Any, Any, int, int], None]] = {
    KVCache: _trim,
    RotatingKVCache: _append_again,
}
