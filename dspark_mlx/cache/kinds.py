"""How each class of mlx-lm cache goes back: one row per exact type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from dspark_mlx.errors import UnsupportedError


class Kind:
    """A cache whose newest rows are dropped by moving its offset: nothing is ever overwritten.

    A *mark* is taken before every forward and must cost nothing. What is *held* belongs to a
    snapshot and outlives any number of forwards.
    """

    replays = False  # after a cut the rows that stay have to be run through again
    trims_freely = True  # whether `floor` is always 0

    def offset(self, entry: Any) -> int | None:
        """Positions processed so far, where the cache counts them."""
        return entry.offset

    def mark(self, entry: Any) -> Any:
        """What `rewind` needs."""
        return entry.offset

    def rewind(self, entry: Any, mark: Any) -> None:
        """Back to the mark, whether the forward reached this entry or broke off before it."""
        self.shorten(entry, mark)

    def cut(self, entry: Any, mark: Any, length: int) -> None:
        """Keep the first `length` positions: more than at the mark, fewer than now."""
        self.shorten(entry, length)

    def hold(self, entry: Any) -> Any:
        """What `put_back` needs at any later time."""
        return entry.offset

    def put_back(self, entry: Any, held: Any) -> None:
        """Back to the state that was held."""
        self.shorten(entry, held)

    def floor(self, entry: Any, length: int) -> int:
        """The fewest positions, of `length`, to which it can be shortened exactly."""
        return 0

    def shorten(self, entry: Any, length: int) -> None:
        """Drop everything after the first `length` positions."""
        drop = entry.offset - length
        if drop and entry.trim(drop) != drop:
            raise RuntimeError(f"{type(entry).__name__} did not drop {drop} positions")


class Chunked(Kind):
    """Attention within chunks of the sequence: rows before the current chunk are gone."""

    trims_freely = False

    def floor(self, entry: Any, length: int) -> int:
        chunks = -(-entry.start_position // entry.chunk_size)  # whole ones that are gone
        return min(chunks * entry.chunk_size, length)

    def hold(self, entry: Any) -> Any:
        return handles(entry.state)

    def put_back(self, entry: Any, held: Any) -> None:
        entry.state = handles(held)


class Rotating(Kind):
    """A window of the last `max_size` positions, in a ring or, after a block, in order.

    A forward of one row overwrites the oldest row of a full ring in place. The next position
    does not see that row, so moving the indices back is exact. A forward of more rows builds
    new arrays of `max_size - 1` old rows and all new ones: any but the first of the new rows
    may be sliced off again; with none left, the ring of before is taken back.
    """

    trims_freely = False

    def mark(self, entry: Any) -> Any:
        return entry.state

    def rewind(self, entry: Any, mark: Any) -> None:
        entry.state = mark

    def cut(self, entry: Any, mark: Any, length: int) -> None:
        keys, values, offset, keep, size, at = entry.state
        rows = keys.shape[2] - (offset - length)
        if at != keys.shape[2] or rows < min(length, size):
            raise RuntimeError(f"a window of {size} lost rows before {length} of {offset}")
        entry.state = keys[..., :rows, :], values[..., :rows, :], length, keep, size, rows

    def hold(self, entry: Any) -> Any:
        return handles(entry.state)

    def put_back(self, entry: Any, held: Any) -> None:
        entry.state = handles(held)

    def floor(self, entry: Any, length: int) -> int:
        return 0 if entry.offset <= entry.max_size else length

    def shorten(self, entry: Any, length: int) -> None:
        keys, values, offset, keep, size, _ = entry.state
        if length == offset:
            return
        if offset > size:
            raise RuntimeError(f"a window of {size} cannot go back from {offset} to {length}")
        if length == 0:
            keys = values = None
        else:
            keys, values = keys[..., :length, :], values[..., :length, :]
        entry.state = keys, values, length, keep, size, length


class Recurrent(Kind):
    """States that hold the whole past in one array, each forward's replacing the last one's."""

    replays = True
    trims_freely = False

    def offset(self, entry: Any) -> None:
        return None

    def mark(self, entry: Any) -> Any:
        return list(entry.cache)  # not `state`: that is the very list a forward writes to

    def rewind(self, entry: Any, mark: Any) -> None:
        entry.cache = list(mark)

    def cut(self, entry: Any, mark: Any, length: int) -> None:
        entry.cache = list(mark)  # then the replay

    def hold(self, entry: Any) -> Any:
        return handles(list(entry.cache))

    def put_back(self, entry: Any, held: Any) -> None:
        entry.cache = handles(held)

    def floor(self, entry: Any, length: int) -> int:
        return length

    def shorten(self, entry: Any, length: int) -> None:
        """Only a snapshot or a mark leads back."""


_PLAIN = Kind()

KINDS: dict[type, Kind] = {
    KVCache: _PLAIN,
    QuantizedKVCache: _PLAIN,
    ChunkedKVCache: Chunked(),
    RotatingKVCache: Rotating(),
    ArraysCache: Recurrent(),
}


def kind_of(entry: Any) -> Kind:
    """The row for a cache, by its exact type (a subclass may store differently)."""
    return KINDS[type(entry)]


def leaves(entries: Sequence[Any]) -> Iterator[Any]:
    """The caches of a cache list, those inside a CacheList one by one."""
    for entry in entries:
        if type(entry) is CacheList:
            yield from leaves(entry.caches)
        else:
            yield entry


def check_kinds(entries: Sequence[Any], name: str) -> None:
    """Raise UnsupportedError naming the cache classes that have no row, and their layers."""
    odd: dict[str, list[int]] = {}
    for index, entry in enumerate(entries):
        for leaf in leaves([entry]):
            if type(leaf) not in KINDS:
                odd.setdefault(type(leaf).__name__, []).append(index)
    if odd:
        found = "; ".join(f"{kind} (cache {_shortened(at)})" for kind, at in sorted(odd.items()))
        known = ", ".join(sorted(kind.__name__ for kind in KINDS))
        raise UnsupportedError(
            f"{name} uses caches from which rejected drafts cannot be removed: {found}; "
            f"supported: {known}"
        )


def _shortened(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:3]))
    return shown + (f" and {len(indices) - 3} more" if len(indices) > 3 else "")


def arrays_of(entries: Sequence[Any]) -> list[mx.array]:
    """Every array in these caches."""
    states = [leaf.state for leaf in leaves(entries) if not leaf.empty()]
    return [value for _, value in tree_flatten(states) if isinstance(value, mx.array)]


def handle(array: mx.array) -> mx.array:
    """A second name for the same memory, which writes through the first one do not reach."""
    return array[...]


def handles(state: Any) -> Any:
    """The same nest of tuples and lists with a handle in place of each array."""
    return tree_map(lambda value: handle(value) if isinstance(value, mx.array) else value, state)
