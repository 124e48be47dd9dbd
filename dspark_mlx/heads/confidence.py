"""The confidence head (method section 5): how likely each draft is to be accepted."""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.config import DrafterConfig


class ConfidenceHead(nn.Module):
    """One logit per position from [h_k ; W1[x_{k-1}]], or from h_k alone."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        assert config.confidence is not None
        width = config.hidden_size
        if config.confidence.with_markov and config.markov:
            width += config.markov.rank
        self.with_markov = config.confidence.with_markov
        self.proj = nn.Linear(width, 1)

    def __call__(self, hidden: mx.array, embedded: mx.array | None) -> mx.array:
        """Logits [n], float32, from hidden [n, d] and embedded previous tokens [n, r]."""
        if self.with_markov and embedded is not None:
            hidden = mx.concatenate([hidden, embedded], axis=-1)
        return self.proj(hidden).squeeze(-1).astype(mx.float32)


def to_probability(logit: float) -> float:
    """The sigmoid of a confidence logit, safe for any finite value."""
    if logit >= 0:
        return 1.0 / (1.0 + math.exp(-logit))
    power = math.exp(logit)
    return power / (1.0 + power)
