"""The gated head: B_k = W2 (sigmoid(W_g [h_k ; e_k] + b_g) * e_k) (method section 4)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.config import DrafterConfig

from .markov import VanillaHead


class GatedHead(VanillaHead):
    """Stateless; the hidden row decides how much of the Markov embedding passes."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.gate_proj = nn.Linear(config.hidden_size + self.rank, self.rank)

    def bias(self, state: Any, embedded: mx.array, hidden: mx.array) -> tuple[mx.array, Any]:
        """B_k [1, V]; the features are ordered [h ; e]."""
        gate = mx.sigmoid(self.gate_proj(mx.concatenate([hidden, embedded], axis=-1)))
        return self.markov_w2(gate * embedded), None
