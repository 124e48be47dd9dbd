"""One small adapter over mlx-lm's cache list: everything else sees only lengths."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from dspark_mlx.sync import settle

from .kinds import arrays_of, check_kinds, handles, kind_of, leaves
from .quantization import KVQuantization
from .snapshot import CacheSnapshot
from .storage import read_entries, write_entries


class Replay(Protocol):
    """Brings recurrent states, set back to their marks, forward again."""

    @property
    def whole(self) -> bool:
        """True: it runs the whole target, so every entry has to be set back first."""

    def __call__(self, rows: int) -> None:
        """Run the first `rows` rows of the last forward again (lazily)."""


class TargetCache:
    """The caches of one sequence.

    Between rounds `length` is the position of the newest committed token, which the target
    has not processed yet. A forward is `mark`, the target's call on `entries`, `grew`; then
    `keep` says how much of it stays. Nothing here waits for the device but `snapshot`,
    `save` and `load`.
    """

    def __init__(
        self,
        model: nn.Module,
        quantization: KVQuantization | None = None,
        *,
        name: str = "this target",
    ) -> None:
        self.entries: list[Any] = make_prompt_cache(model)  # mlx-lm swaps entries: hold none
        self.quantization = quantization
        self.length = 0
        self._marked = 0
        self._marks: list[Any] = []
        self._replay: Replay | None = None
        self._exact_from = 0  # where quantization began: a shorter past was another one
        self._good: WeakSet[CacheSnapshot] = WeakSet()
        check_kinds(self.entries, name)
        self.mark()

    @property
    def replays(self) -> bool:
        """True where a cut needs rows to be run again (recurrent states)."""
        return any(kind_of(leaf).replays for leaf in leaves(self.entries))

    @property
    def trims_freely(self) -> bool:
        """True where `trim_to` works for any length at any time, so snapshots are not needed."""
        return all(kind_of(leaf).trims_freely for leaf in leaves(self.entries)) and not (
            self.quantization
        )

    def recurrent(self) -> list[Any]:
        """The entries that a replay brings forward."""
        return [leaf for leaf in leaves(self.entries) if kind_of(leaf).replays]

    def mark(self) -> None:
        """Remember the state before a forward; `keep` can go back to anything after it.

        Caches that have come to where quantization starts are converted here.
        """
        if self.quantization and self.length and self.quantization.convert(self.entries):
            self._exact_from = self.length
            self._good = WeakSet(s for s in self._good if s.length >= self.length)
        self._marked = self.length
        self._marks = [kind_of(leaf).mark(leaf) for leaf in leaves(self.entries)]
        self._replay = None

    def grew(self, count: int, replay: Replay | None = None) -> None:
        """Note that a forward appended `count` positions to every entry."""
        self.length += count
        self._replay = replay

    def keep(self, length: int) -> None:
        """Drop everything after the first `length` positions; checked on every entry.

        Any length from the mark on, and shorter ones where `can_trim_to` says so. If cutting
        fails, the cache is at its mark.
        """
        if length < self._marked:
            self.trim_to(length)
        elif length > self.length:
            raise RuntimeError(f"cannot keep {length} of {self.length} positions")
        elif length == self._marked:
            self.undo()
        elif length < self.length:
            try:
                self._cut(length)
            except BaseException:
                self.undo()
                raise
        self._check(length)

    def undo(self) -> None:
        """Back to the mark, after a whole forward or one that broke off in the middle."""
        for leaf, mark in zip(leaves(self.entries), self._marks, strict=True):
            kind_of(leaf).rewind(leaf, mark)
        self._shortened(self._marked)
        self._check(self._marked)

    def rows_until_border(self) -> int | None:
        """The most rows that one decoding forward may run, or None for any number.

        Where KV quantization starts in mid-run, plain decoding quantizes before the next row:
        a block must not reach over that border.
        """
        ahead = self.quantization.start - self.length if self.quantization else 0
        return ahead if ahead > 0 else None

    def can_trim_to(self, length: int) -> bool:
        """Whether `trim_to` can cut to the first `length` positions without a snapshot."""
        if not 0 <= length <= self.length:
            return False
        floors = [kind_of(leaf).floor(leaf, self.length) for leaf in leaves(self.entries)]
        return length >= min(self.length, max(self._exact_from, *floors))

    def trim_to(self, length: int) -> None:
        """Drop everything after the first `length` positions, however old they are."""
        if not self.can_trim_to(length):
            raise RuntimeError(f"this cache cannot be cut from {self.length} to {length}")
        for leaf in leaves(self.entries):
            kind_of(leaf).shorten(leaf, length)
        self._shortened(length)
        self._settled()

    def snapshot(self) -> CacheSnapshot:
        """The present state, to go back to; waits until it is computed.

        Evaluated, so that no graph of past rounds lives on in it and any thread can use it.
        """
        held = tuple(kind_of(leaf).hold(leaf) for leaf in leaves(self.entries))
        made = CacheSnapshot(self.length, held)
        settle(made.arrays())
        self._good.add(made)
        return made

    def can_restore(self, snapshot: CacheSnapshot) -> bool:
        """Whether the snapshot is of this cache and its past is still there."""
        return snapshot in self._good

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Back to exactly the snapshot's state. Later snapshots are lost, it stays good."""
        if not self.can_restore(snapshot):
            raise RuntimeError(
                f"a snapshot of {snapshot.length} positions is of another cache, or of a past "
                "that was cut away"
            )
        for leaf, held in zip(leaves(self.entries), snapshot.held, strict=True):
            kind_of(leaf).put_back(leaf, held)
        self._shortened(snapshot.length)
        self._settled()

    def fork(self) -> TargetCache:
        """An independent cache in the same state; memory is shared until either is written to.

        Snapshots that are good here are good there.
        """
        other = copy.copy(self)
        other.entries = [type(entry).from_state(handles(entry.state)) for entry in self.entries]
        other._good = WeakSet(self._good)
        other._settled()
        return other

    def arrays(self) -> list[mx.array]:
        """Every array to evaluate to bring the cache up to date on the device."""
        return arrays_of(self.entries)

    def save(self, path: str | Path, metadata: dict[str, str] | None = None) -> None:
        """Write a file in mlx-lm's prompt-cache format, whole or not at all."""
        settle(self.arrays())
        own = {"length": self.length, "exact_from": self._exact_from}
        write_entries(Path(path), self.entries, own, metadata or {})

    @classmethod
    def load(
        cls,
        model: nn.Module,
        path: str | Path,
        quantization: KVQuantization | None = None,
        *,
        name: str = "this target",
    ) -> tuple[TargetCache, dict[str, str]]:
        """Read what `save` wrote -> the cache and the caller's metadata.

        CheckpointError where the file is damaged or not of a cache like this model's.
        """
        cache = cls(model, quantization, name=name)
        like = cache.fork().entries
        model(mx.zeros((1, 1), mx.int32), cache=like)  # never computed: for the shapes
        cache.entries, own, metadata = read_entries(Path(path), like, quantization)
        cache.length, cache._exact_from = own["length"], own["exact_from"]
        settle(cache.arrays())
        cache._settled()
        return cache, metadata

    def _cut(self, length: int) -> None:
        again = self.recurrent()
        if again and self._replay is None:
            raise RuntimeError("recurrent states can only be cut with a replay of the forward")
        whole = bool(again) and self._replay is not None and self._replay.whole
        for leaf, mark in zip(leaves(self.entries), self._marks, strict=True):
            kind = kind_of(leaf)
            if whole:
                kind.rewind(leaf, mark)
            else:
                kind.cut(leaf, mark, length)
        before = [list(leaf.cache) for leaf in again]
        if again and self._replay is not None:
            self._replay(length - self._marked)
        if any(_same(leaf.cache, old) for leaf, old in zip(again, before, strict=True)):
            raise RuntimeError("a recurrent state was set back and not brought forward again")
        self._shortened(length)

    def _shortened(self, length: int) -> None:
        self.length = length
        self._good = WeakSet(s for s in self._good if s.length <= length)

    def _settled(self) -> None:
        """No forward is open: the present state is the mark."""
        self._check(self.length)
        self._marked = self.length
        self._marks = [kind_of(leaf).mark(leaf) for leaf in leaves(self.entries)]
        self._replay = None

    def _check(self, length: int) -> None:
        for leaf in leaves(self.entries):
            offset = kind_of(leaf).offset(leaf)
            if offset not in (length, None):
                raise RuntimeError(f"{type(leaf).__name__} holds {offset}, not {length}")


def _same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return all(a is b for a, b in zip(now, before, strict=True))
