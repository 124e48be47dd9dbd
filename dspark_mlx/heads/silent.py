"""A sequential head switched off, for the ablation that shows what the head buys (section 4)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .base import SequentialHead


class SilentHead(nn.Module):
    """Keeps a head's embedding, which the confidence head may read, and leaves out its bias."""

    def __init__(self, head: SequentialHead, rows: int) -> None:
        super().__init__()
        self._head, self._rows = head, rows

    def start(self) -> Any:
        """No state."""
        return None

    def embed(self, previous: mx.array) -> mx.array:
        """As the head itself: ids [1] -> [1, r]."""
        return self._head.embed(previous)

    def bias(self, state: Any, embedded: mx.array, hidden: mx.array) -> tuple[mx.array, Any]:
        """Nothing: zeros [n, rows of the head]."""
        nothing = mx.zeros((1, 1), embedded.dtype)
        return mx.broadcast_to(nothing, (embedded.shape[0], self._rows)), None
