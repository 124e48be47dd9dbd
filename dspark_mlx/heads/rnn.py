"""The recurrent head: a state carries more than one token of the block (method section 4)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.config import DrafterConfig

from .markov import VanillaHead


class RnnHead(VanillaHead):
    """[G; C; O] = W_J [s ; e ; h] + b_J; the bias is W2 tanh(O), the state a gated mix."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.joint_proj = nn.Linear(2 * self.rank + config.hidden_size, 3 * self.rank)

    def start(self) -> mx.array:
        """s_0 = 0, [1, r]; every block begins anew."""
        return mx.zeros((1, self.rank))

    def bias(self, state: Any, embedded: mx.array, hidden: mx.array) -> tuple[mx.array, Any]:
        """B_k [1, V] from the state before this position, and the state after it."""
        state = mx.broadcast_to(state, embedded.shape)
        features = mx.concatenate([state.astype(embedded.dtype), embedded, hidden], axis=-1)
        gate, candidate, output = mx.split(self.joint_proj(features), 3, axis=-1)
        keep = mx.sigmoid(gate)
        following = keep * state + (1 - keep) * mx.tanh(candidate)
        return self.markov_w2(mx.tanh(output)), following
