"""Sampled output checked against the target's own law, on short continuations.

For every token after the first, the target's exact distribution given what came before is
computed anew, and the token is turned into a number that is uniform on [0, 1) if and only if it
was drawn from that distribution (the randomised probability integral transform). Tokens are put
in order by how much more the target likes them than the drafter did, which is where a wrong
accept rule shows. All numbers of all prompts go into one Kolmogorov-Smirnov test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from dspark_mlx.events import Prefilled, Round
from dspark_mlx.options import Options
from dspark_mlx.pair import Pair
from dspark_mlx.run import run_events
from dspark_mlx.sampling import KeyedDraws, Sampling

from .arms import Arm

LEAST = 1e-4  # the smallest p-value that passes; by chance one run in 10,000 is below
FEWEST = 50  # numbers without which the test says nothing
IMPOSSIBLE = 2.0  # stands for a token of probability zero

Law = npt.NDArray[np.float64]


class RecordingDraws(KeyedDraws):
    """Seeded draws that remember every distribution a token was drawn from."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.laws: list[mx.array] = []

    def token(self, probabilities: mx.array) -> mx.array:
        """See KeyedDraws."""
        self.laws.append(probabilities)
        return super().token(probabilities)

    def drafted(self, arm: Arm) -> list[Law]:
        """The drafter's distributions of the newest round, over the target's vocabulary.

        The last distribution is the target's own, for the token that ends the round.
        """
        drafter, laws, self.laws = arm.pair.drafter, self.laws, []
        spread = getattr(drafter, "to_target", None)  # where the vocabularies differ
        found = []
        for law in laws[:-1]:
            row = law.reshape(1, -1)
            if spread is not None:
                _, row = spread(mx.array([0]), row)
            found.append(np.array(row[0], np.float64))
        return found


def transformed(
    plain: Pair, arm: Arm, ids: Sequence[int], sampling: Sampling, tokens: int, seed: int
) -> list[float]:
    """One continuation's numbers: one per token after the first."""
    draws = RecordingDraws(seed)
    options = Options(
        max_tokens=tokens, cutoff=arm.cutoff, block_size=arm.block_size, **vars(sampling)
    )
    drawn: list[int] = []
    drafted: list[Law | None] = []  # what each token after the first was drafted from
    for event in run_events(arm.pair, ids, options, draws):
        if isinstance(event, Prefilled):
            draws.drafted(arm)
            drawn.append(event.token)
        elif isinstance(event, Round):
            known = draws.drafted(arm)[: event.verified]
            drawn += event.tokens
            drafted += [*known, *[None] * len(event.tokens)][: len(event.tokens)]
    if len(drawn) < 2:
        return []
    logits, _ = plain.tapped(mx.array([*ids, *drawn[:-1]]), plain.target.new_cache())
    laws = np.array(sampling.probabilities(logits[1 - len(drawn) :]), np.float64)
    noise = np.random.default_rng(seed).random(len(drawn) - 1)
    return [
        place(law / law.sum(), q, token, v)
        for law, q, token, v in zip(laws, drafted, drawn[1:], noise, strict=True)
    ]


def place(law: Law, drafted: Law | None, token: int, noise: float) -> float:
    """Where `token` falls in `law` [V], by falling law / drafted (or law alone)."""
    own = law[token]
    if own <= 0.0:
        return IMPOSSIBLE
    liking = law if drafted is None else law / np.maximum(drafted, 1e-30)
    before = (liking > liking[token]) | ((liking == liking[token]) & (np.arange(len(law)) < token))
    return float(law[before].sum() + noise * own)


def judge(numbers: Sequence[float]) -> dict[str, Any]:
    """Distance from the uniform law, its p-value, and whether it passes, JSON-ready."""
    impossible = sum(u >= IMPOSSIBLE for u in numbers)
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
