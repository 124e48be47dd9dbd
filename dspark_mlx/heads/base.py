"""What the drafting loop asks of a sequential head."""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx


class SequentialHead(Protocol):
    """A bias on a position's base logits, from the token before it; for one row, or for several."""

    def start(self) -> Any:
        """The state before the first position of a block."""

    def embed(self, previous: mx.array) -> mx.array:
        """e_k = W1[x_{k-1}]: ids [1] -> [1, r]."""

    def bias(self, state: Any, embedded: mx.array, hidden: mx.array) -> tuple[mx.array, Any]:
        """B_k [1, V] and the next state, from e_k [1, r] and h_k [1, d]."""
