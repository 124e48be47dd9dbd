"""The target's cache between rounds: it may grow by a block, then keeps what was accepted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import (
    KVCache,
    RotatingKVCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)

from .errors import CheckpointError, UnsupportedError


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
        self.mark()

    def mark(self) -> None:
        """Remember the state before a forward; `keep` can go back to anything after it."""
        self._marked = self.length
        self._marks = [None if type(c) is KVCache else c.state for c in self.entries]

    def grew(self, count: int) -> None:
        """Note that a forward appended `count` positions to every entry."""
        self.length += count

    def keep(self, length: int) -> None:
        """Drop everything after the first `length` positions; checked on every entry.

        Goes back to the mark, and further where `can_trim_to` says so.
        """
        if not self.can_trim_to(length):
            raise RuntimeError(f"cannot keep {length} of {self._marked}..{self.length} positions")
        grown, kept = self.length - self._marked, length - self._marked
        for entry, mark in zip(self.entries, self._marks, strict=True):
            if kept < 0:
                entry.trim(self.length - length)
            elif kept < grown:
                ROLLBACKS[type(entry)](entry, mark, grown, kept)
            if entry.offset != length:
                raise RuntimeError(f"{type(entry).__name__} holds {entry.offset}, not {length}")
        self.length = length
        if kept < 0:
            self.mark()

    def can_trim_to(self, length: int) -> bool:
        """Whether `keep(length)` is possible."""
        free = all(c.is_trimmable() for c in self.entries)
        return (0 if free else self._marked) <= length <= self.length

    def undo(self) -> None:
        """Back to the mark, whatever a forward that broke off left behind.

        RuntimeError where that cannot be: a one-row step overwrites a full window in place.
        """
        for entry, mark in zip(self.entries, self._marks, strict=True):
            if entry.offset == self._marked:
                continue
            if mark is None:
                entry.trim(entry.offset - self._marked)
            elif entry.keys is mark[0]:
                raise RuntimeError("a window was overwritten in place")
            else:
                entry.state = mark
        self.length = self._marked

    @property
    def trims_freely(self) -> bool:
        """True where `can_trim_to` is, for any length at any time."""
        return all(type(c) is KVCache for c in self.entries)

    def rows_until_border(self) -> int | None:
        """The most rows that one decoding forward may run, or None for any number."""
        return None

    def can_restore(self, snapshot: Any) -> bool:
        """Whether the snapshot's past is still there."""
        return bool(snapshot[0] <= self.length)

    def fork(self) -> TargetCache:
        """An independent cache in the same state."""
        other = copy.copy(self)
        other.entries = [type(c).from_state(tuple(map(_handle, c.state))) for c in self.entries]
        other.mark()
        return other

    def snapshot(self) -> Any:
        """The state as of now, immutable, and independent of what this cache does next."""
        return self.length, [tuple(map(_handle, c.state)) for c in self.entries]

    def restore(self, snapshot: Any) -> None:
        """Take on a snapshot, of this cache or another one of the same target."""
        self.length, states = snapshot
        for entry, state in zip(self.entries, states, strict=True):
            entry.state = tuple(map(_handle, state))
        self.mark()

    def save(self, path: Path, metadata: dict[str, str]) -> None:
        """Write mlx-lm's prompt-cache file."""
        save_prompt_cache(str(path), self.entries, metadata)

    @classmethod
    def load(cls, model: nn.Module, path: Path) -> tuple[TargetCache, dict[str, str]]:
        """Read what `save` wrote -> the cache and the caller's metadata."""
        cache = cls(model)
        entries, metadata = load_prompt_cache(str(path), return_metadata=True)
        if [type(c) for c in entries] != [type(c) for c in cache.entries]:
            raise CheckpointError(f"{path} holds the caches of another model")
        cache.entries, cache.length = entries, entries[0].offset
        cache.mark()
        return cache, metadata

    def arrays(self) -> list[mx.array]:
        """Every array to evaluate to bring the cache up to date on the device."""
        return [a for c in self.entries if not c.empty() for a in (c.keys, c.values)]


def _handle(value: Any) -> Any:
    # another handle on the same data: in-place writes replace what the handle points to
    return mx.array(value) if isinstance(value, mx.array) else value


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
