"""A state of a cache to which it can go back at any later time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten


@dataclass(frozen=True, eq=False)
class CacheSnapshot:
    """Made by `TargetCache.snapshot`; good until that cache is cut to fewer positions.

    Plain KV caches are held by their length alone. Windows and recurrent states are held by
    reference: that costs nothing until the cache moves on, then `nbytes`.
    """

    length: int
    held: tuple[Any, ...]  # one per cache, in the order of `kinds.leaves`

    @property
    def nbytes(self) -> int:
        """Bytes that this snapshot keeps alive once the cache has moved on."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[mx.array]:
        """Everything that is held by reference."""
        return [v for _, v in tree_flatten(list(self.held)) if isinstance(v, mx.array)]
