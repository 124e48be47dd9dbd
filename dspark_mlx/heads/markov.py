"""The vanilla head: a low-rank Markov matrix, B_k = W2 W1[x_{k-1}] (method section 4)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.config import DrafterConfig


class VanillaHead(nn.Module):
    """Stateless; every released DSpark drafter has this head."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        assert config.markov is not None
        self.rank = config.markov.rank
        # W1 is read at target tokens, W2 gives rows of the head
        self.markov_w1 = nn.Embedding(config.vocab_size, self.rank)
        self.markov_w2 = nn.Linear(self.rank, config.head_rows, bias=False)

    def start(self) -> Any:
        """No state."""
        return None

    def embed(self, previous: mx.array) -> mx.array:
        """e_k = W1[x_{k-1}]: ids [1] -> [1, r]."""
        return self.markov_w1(previous)

    def bias(self, state: Any, embedded: mx.array, hidden: mx.array) -> tuple[mx.array, Any]:
        """B_k [1, V]; the hidden row is not used."""
        return self.markov_w2(embedded), None
