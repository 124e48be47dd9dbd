"""The target's cache between rounds: it may grow by a block, then keeps what was accepted."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from .errors import UnsupportedError


class TargetCache:
    """One small adapter over mlx-lm's cache list: everything else sees only lengths.

    Between rounds `length` is the position of the newest committed token, which the target
    has not processed yet.
    """

    def __init__(self, model: nn.Module) -> None:
        self.entries: list[Any] = make_prompt_cache(model)
        self.length = 0
        if odd := sorted({type(c).__name__ for c in self.entries if type(c) is not KVCache}):
            raise UnsupportedError(
                f"this target uses {', '.join(odd)}, from which rejected drafts cannot be removed "
                "yet; only targets with plain KV caches are supported"
            )

    def grew(self, count: int) -> None:
        """Note that a forward appended `count` positions to every entry."""
        self.length += count

    def keep(self, length: int) -> None:
        """Drop everything after the first `length` positions; checked on every entry."""
        surplus = self.length - length
        for entry in self.entries:
            if surplus and entry.trim(surplus) != surplus:
                raise RuntimeError(f"{type(entry).__name__} did not drop {surplus} positions")
            if entry.offset != length:
                raise RuntimeError(f"{type(entry).__name__} holds {entry.offset}, not {length}")
        self.length = length

    def arrays(self) -> list[mx.array]:
        """Every array to evaluate to bring the cache up to date on the device."""
        return [a for c in self.entries if not c.empty() for a in (c.keys, c.values)]
