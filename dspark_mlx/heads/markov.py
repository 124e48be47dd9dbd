"""The vanilla head: a low-rank Markov matrix, B_k = W2 W1[x_{k-1}] (method section 4)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn


class VanillaHead(nn.Module):
    """Stateless; every released DSpark drafter has this head."""

    def __init__(self, width: int, rank: int, vocab_size: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)

    def start(self) -> Any:
        """No state."""
        return None

    def embed(self, previous: mx.array) -> mx.array:
        """e_k = W1[x_{k-1}]: ids [1] -> [1, r]."""
        return self.markov_w1(previous)

    def bias(self, state: Any, embedded: mx.array, hidden: mx.array) -> tuple[mx.array, Any]:
        """B_k [1, V]; the hidden row is not used."""
        return self.markov_w2(embedded), None
