"""Sampled output checked against the target's own law, on short continuations.

For every token drawn after the first, the target's exact distribution given what came before
is computed in one pass, and the token is turned into a number that is uniform on [0, 1) if and
only if it was drawn from that distribution (the randomised probability integral transform,
tokens ordered from the likeliest down). All numbers of all prompts go into one
Kolmogorov-Smirnov test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from dspark_mlx.api import stream
from dspark_mlx.events import Prefilled, Round
from dspark_mlx.pair import Pair
from dspark_mlx.sampling import Sampling

from .arms import Arm

LEAST = 1e-4  # the smallest p-value that passes; by chance one run in 10,000 is below
FEWEST = 50  # numbers without which the test says nothing


def transformed(
    plain: Pair, arm: Arm, ids: Sequence[int], sampling: Sampling, tokens: int, seed: int
) -> list[float]:
    """One continuation's numbers: one per token after the first. Above 1: probability zero."""
    drawn: list[int] = []
    events = stream(
        arm.pair, ids, max_tokens=tokens, seed=seed, cutoff=arm.cutoff,
        block_size=arm.block_size, **vars(sampling),
    )  # fmt: skip
    for event in events:
        if isinstance(event, Prefilled):
            drawn.append(event.token)
        elif isinstance(event, Round):
            drawn += event.tokens
    if len(drawn) < 2:
        return []
    cache = plain.target.new_cache()
    logits, _ = plain.tapped(mx.array([*ids, *drawn[:-1]]), cache)
    laws = np.array(sampling.probabilities(logits[1 - len(drawn) :]), np.float64)
    noise = np.random.default_rng(seed).random(len(drawn))
    return [
        _place(law / law.sum(), token, v)
        for law, token, v in zip(laws, drawn[1:], noise, strict=False)
    ]


def _place(law: Any, token: int, noise: float) -> float:
    own = law[token]
    if own <= 0.0:
        return 2.0
    before = (law > own) | ((law == own) & (np.arange(len(law)) < token))
    return float(law[before].sum() + noise * own)


def judge(numbers: Sequence[float]) -> dict[str, Any]:
    """Distance from the uniform law, its p-value, and whether it passes, JSON-ready."""
    impossible = sum(u > 1.0 + 1e-9 for u in numbers)
    count = len(numbers)
    distance = _distance(numbers)
    p_value = _tail(distance, count)
    return {
        "numbers": count,
        "impossible": impossible,
        "distance": distance,
        "p_value": p_value,
        "enough": count >= FEWEST,
        "passes": count >= FEWEST and impossible == 0 and p_value >= LEAST,
    }


def _distance(numbers: Sequence[float]) -> float:
    if not numbers:
        return 0.0
    ordered = np.sort(np.minimum(np.array(numbers), 1.0))
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def _tail(distance: float, count: int) -> float:
    """P(the Kolmogorov-Smirnov distance of `count` uniform numbers exceeds this), asymptotic."""
    root = math.sqrt(max(count, 1))
    x = (root + 0.12 + 0.11 / root) * distance  # Stephens 1970
    if x < 0.2:
        return 1.0
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101))
    return min(max(sum(terms), 0.0), 1.0)
