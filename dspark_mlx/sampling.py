"""Logits to probabilities, once, for target and drafter alike; and the draws from them."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from .errors import OptionError

GREEDY_BELOW = 1e-5
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from a row of logits. A temperature below 1e-5 means argmax."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, math.inf)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise OptionError(f"top_k must be an integer of 0 (off) or more, not {self.top_k!r}")

    @property
    def greedy(self) -> bool:
        """Whether every draw is an argmax."""
        return self.temperature < GREEDY_BELOW

    def probabilities(self, logits: mx.array) -> mx.array:
        """The distribution a draw follows, float32, same shape as `logits` [..., V].

        mlx-lm's order: top-p, min-p and top-k act on the logits at temperature 1, the
        temperature comes last. Not defined for greedy sampling.
        """
        logits = logits.astype(mx.float32)
        kept = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        if 0.0 < self.top_p < 1.0:
            kept = apply_top_p(kept, self.top_p)
        if self.min_p > 0.0:
            kept = apply_min_p(kept, self.min_p)
        if 0 < self.top_k < logits.shape[-1]:
            kept = apply_top_k(kept, self.top_k)
        return mx.softmax(kept * (1.0 / self.temperature), axis=-1)


class Draws(Protocol):
    """A source of random draws, consumed in the order of the decode round."""

    def token(self, probabilities: mx.array) -> mx.array:
        """One token id [1] (lazy) from one distribution [1, V] or [V]."""

    def uniforms(self, count: int) -> mx.array:
        """`count` independent numbers of [0, 1), float32 [count] (lazy)."""


class KeyedDraws:
    """Draws from explicit keys: the n-th draw depends on the seed and n, and on nothing else.

    No global random state is read or written, so interleaved runs cannot disturb each other.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count = 0

    def token(self, probabilities: mx.array) -> mx.array:
        """See Draws. The logarithm of the very float32 probabilities is what is drawn from."""
        return mx.random.categorical(mx.log(probabilities), key=self._next_key()).reshape(1)

    def uniforms(self, count: int) -> mx.array:
        """See Draws."""
        return mx.random.uniform(shape=(count,), key=self._next_key())

    def _next_key(self) -> mx.array:
        self._count += 1
        return mx.random.key(_mix(self._seed, self._count))


def resolve_seed(seed: int | None) -> int:
    """The given seed, or a fresh one from the operating system (never MLX's per-thread state)."""
    if seed is None:
        return secrets.randbits(63)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise OptionError(f"seed must be an integer from 0 to 2**64 - 1, not {seed!r}")
    return seed


def _mix(seed: int, count: int) -> int:
    # SplitMix64 (Steele et al. 2014): neighbouring inputs give unrelated keys
    z = (seed + count * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def _check(name: str, value: float, low: float, high: float) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not low <= value <= high or math.isinf(value):
        span = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of {low:g} or more"
        raise OptionError(f"{name} must be a number {span}, not {value!r}")
