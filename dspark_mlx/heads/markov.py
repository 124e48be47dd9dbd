"""The vanilla head: a low-rank Markov matrix, B_k = W2 W1[x_{k-1}] (method section 4)."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.config import DrafterConfig


class VanillaHead(nn.Module):
    """Stateless; every released DSpark drafter has this head."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        assert config.markov is not None
        self.markov_w1 = nn.Embedding(config.vocab_size, config.markov.rank)
        self.markov_w2 = nn.Linear(config.markov.rank, config.vocab_size, bias=False)

    def start(self) -> None:
        """No state."""

    def embed(self, previous: mx.array) -> mx.array:
        """e_k = W1[x_{k-1}]: ids [1] -> [1, r]."""
        return self.markov_w1(previous)

    def bias(self, state: None, embedded: mx.array, hidden: mx.array) -> tuple[mx.array, None]:
        """B_k [1, V]; the hidden row is not used."""
        return self.markov_w2(embedded), None
