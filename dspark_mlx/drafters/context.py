"""What a drafter remembers of committed positions, in agreement with itself at any moment."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

SLACK = 256  # rows beyond the window that may wait, so that dropping is rare


class ContextCache:
    """One layer's keys and values [1, kv_heads, n, head_dim]; the oldest rows may be dropped.

    `offset` counts positions, dropped ones included.
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window  # how many of the newest positions are looked at (None: all)
        self._held = KVCache()
        self._dropped = 0

    @property
    def offset(self) -> int:
        """The position that the next row will have."""
        return self._dropped + self._held.offset

    @property
    def rows(self) -> int:
        """Rows in memory."""
        return self._held.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows; return every row in memory."""
        return self._held.update_and_fetch(keys, values)

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        """mlx-lm's mask for rows about to be appended, over the rows in memory."""
        return self._held.make_mask(*args, **kwargs)

    def cut(self, length: int) -> None:
        """Drop the newest rows, so that `length` positions are covered."""
        if (surplus := self.offset - length) <= 0:
            return
        if surplus >= self._held.offset:
            self._held, self._dropped = KVCache(), length
        else:
            self._held.trim(surplus)

    def forget(self, window: int | None) -> None:
        """Now and then, drop the oldest rows so that `window` to `window + SLACK` stay."""
        if window is None or self.rows <= window + SLACK:
            return
        keys, values = self._held.keys_and_values()
        dropped = self.rows - window
        self._held = _holding(keys[..., -window:, :], values[..., -window:, :])
        self._dropped += dropped

    def arrays(self) -> list[mx.array]:
        """Keys and values as stored."""
        return [] if self._held.empty() else [self._held.keys, self._held.values]

    def copy(self) -> ContextCache:
        """An independent cache of the same rows."""
        return self.of(*map(mx.array, self._rows()), offset=self.offset)

    def _rows(self) -> tuple[mx.array, ...]:
        return () if self._held.empty() else self._held.keys_and_values()

    @classmethod
    def of(cls, *rows: mx.array, offset: int) -> ContextCache:
        """A cache of these keys and values (or of nothing) that ends at position `offset`."""
        cache = cls()
        if rows:
            cache._held = _holding(*rows)
        cache._dropped = offset - cache.rows
        return cache


def _holding(keys: mx.array, values: mx.array) -> KVCache:
    held = KVCache()
    held.state = keys, values, keys.shape[2]
    return held


class Context:
    """A drafter's memory of one token sequence: a cache per layer and what is newest.

    `window` is how many of the newest positions are looked at (None: all). Every change is made
    by one assignment to `held` after the caches have grown, and caches are cut back to `held`
    before use: a call that broke off half-way leaves nothing behind.
    """

    def __init__(self, layers: int, window: int | None = None) -> None:
        self.window = window
        # positions that every cache holds, and what the kind keeps beside them
        self.held: tuple[int, mx.array | None] = (0, None)
        self._caches = [ContextCache() for _ in range(layers)]

    @property
    def absorbed(self) -> int:
        """Positions whose keys and values every layer holds."""
        return self.held[0]

    @property
    def length(self) -> int:
        """Committed positions covered."""
        return self.held[0]

    @property
    def caches(self) -> list[ContextCache]:
        """One per layer, without what a broken call left."""
        for cache in self._caches:
            cache.window = self.window
            cache.cut(self.held[0])
        return self._caches

    def cut(self, length: int) -> None:
        """Cover only the first `length` positions; what is newest is known again after `extend`."""
        if length < self.length:
            self.held = (min(length, self.absorbed), None)

    def arrays(self) -> list[mx.array]:
        """Everything to evaluate to bring the context up to date on the device."""
        arrays = [array for cache in self._caches for array in cache.arrays()]
        return arrays if self.held[1] is None else [*arrays, self.held[1]]

    def copy(self) -> Context:
        """An independent context of the same positions."""
        other = copy.copy(self)
        other._caches = [cache.copy() for cache in self.caches]
        return other

    def state(self) -> tuple[dict[str, mx.array], dict[str, int]]:
        """Named arrays and numbers that `restore` reads back."""
        arrays = {} if self.held[1] is None else {"newest": self.held[1]}
        numbers = {"absorbed": self.absorbed, "newest": len(arrays)}
        for number, cache in enumerate(self.caches):
            numbers[f"{number}.rows"] = cache.rows
            for name, rows in zip(("keys", "values"), cache.copy().arrays(), strict=False):
                arrays[f"{number}.{name}"] = rows
        return arrays, numbers

    def restore(self, arrays: dict[str, mx.array], numbers: dict[str, int]) -> None:
        """Take on what `state` gave; KeyError or ValueError where that is not of this kind."""
        absorbed = int(numbers["absorbed"])
        for number in range(len(self._caches)):
            count = numbers[f"{number}.rows"]
            rows = [arrays[f"{number}.{name}"] for name in ("keys", "values")] if count else []
            cache = ContextCache.of(*rows, offset=absorbed)
            if cache.rows != count:
                raise ValueError(f"layer {number} has {cache.rows} rows, expected {count}")
            self._caches[number] = cache
        self.held = (absorbed, arrays["newest"] if numbers["newest"] else None)


def smallest(*limits: int | None) -> int | None:
    """The smallest of the limits that are set."""
    return min((limit for limit in limits if limit is not None), default=None)
