"""Generations without a model: an acceptance process and a cost curve, under real policies.

Content is fixed by token position, so that every policy meets the same text: a round that
starts at position t meets the acceptance probabilities, confidences and coin flips of t. Time
is the sum of what rounds cost by the true curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dspark_mlx.costs import CostCurve, Costs
from dspark_mlx.cutoff import parse_cutoff
from dspark_mlx.cutoff.base import Outcome, Setting

# token position -> mean logit of acceptance there
Content = Callable[[int], float]


def steady(acceptance: float) -> Content:
    """The same text all along."""
    level = float(np.log(acceptance / (1 - acceptance)))
    return lambda position: level


def phases(length: int, *acceptances: float) -> Content:
    """Text that changes every `length` tokens."""
    levels = [float(np.log(a / (1 - a))) for a in acceptances]
    return lambda position: levels[position // length % len(levels)]


@dataclass(frozen=True)
class Scenario:
    """`spread`: how much acceptance varies from round to round (sd of the logit).

    `confident`: the drafter has a confidence head, which reports the true logit, times `slope`,
    plus `shift`, plus noise of sd `blur`. `measured`: the curve that policies are told (None: the
    true one). `jitter`: noise of real seconds (sd of the logarithm), seen by a live run.
    """

    name: str
    curve: CostCurve
    content: Content
    spread: float = 1.0
    confident: bool = True
    slope: float = 1.0
    shift: float = 0.0
    blur: float = 0.3
    tokens: int = 8000
    greedy: bool = True
    measured: CostCurve | None = None
    jitter: float = 0.05
    frozen: bool = False
    seed: int = 0


@dataclass
class World:
    """A scenario's numbers, drawn once."""

    scenario: Scenario
    p: np.ndarray = field(init=False)  # [tokens, drafts], conditional acceptance
    c: np.ndarray = field(init=False)  # and the confidence reported for it
    flips: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        s, numbers = self.scenario, np.random.default_rng(self.scenario.seed)
        shape = (s.tokens, s.curve.drafts)
        level = np.array([s.content(t) for t in range(s.tokens)])[:, None]
        own = numbers.standard_normal((s.tokens, 1)) * s.spread * 0.8
        z = level + own + numbers.standard_normal(shape) * s.spread * 0.6
        told = s.slope * (z + numbers.standard_normal(shape) * s.blur) + s.shift
        self.p, self.c = 1 / (1 + np.exp(-z)), 1 / (1 + np.exp(-told))
        self.flips = numbers.random(shape)
        self.jitter = np.exp(numbers.standard_normal(s.tokens) * s.jitter)


@dataclass
class Result:
    """Tokens per second, in all and after the first 150 tokens; what was decided."""

    rate: float
    late_rate: float
    rounds: int
    reasons: dict[str, int]
    lengths: list[int]


WARM_TOKENS = 150


def play(world: World, policy: str) -> Result:
    """One generation of the scenario's length under a policy named as in the options."""
    s = world.scenario
    costs = Costs({0: s.measured or s.curve}, frozen=s.frozen)
    setting = Setting(s.curve.drafts, s.greedy, s.confident, costs=costs, frozen=s.frozen)
    decider = parse_cutoff(policy).start(setting)
    position, clock, rounds, lengths = 0, 0.0, 0, []
    reasons: dict[str, int] = {}
    warm = (0, 0.0)
    while position < s.tokens:
        plan = decider.plan(s.curve.drafts, position)
        told = world.c[position, : plan.draw].tolist() if s.confident and plan.draw else None
        verified = decider.cut(told) if plan.look and told else plan.verify
        good = world.flips[position, :verified] < world.p[position, :verified]
        accepted = int(np.cumprod(good).sum())
        seconds = s.curve.round(plan.draw, verified, plan.look)
        decider.observe(
            Outcome(plan.draw, verified, verified, accepted, plan.look, told, position,
                    seconds * world.jitter[position])
        )  # fmt: skip
        reasons[plan.reason] = reasons.get(plan.reason, 0) + 1
        lengths.append(verified)
        position, clock, rounds = position + accepted + 1, clock + seconds, rounds + 1
        if not warm[0] and position >= WARM_TOKENS:
            warm = (position, clock)
    late = (position - warm[0]) / (clock - warm[1])
    return Result(position / clock, late, rounds, reasons, lengths)


def walk(world: World, lengths: np.ndarray, prices: Sequence[float]) -> float:
    """The rate when a round at position t verifies lengths[t] drafts, for prices[lengths[t]]."""
    right = np.cumprod(world.flips < world.p, axis=1).sum(axis=1)
    steps, costs = (np.minimum(right, lengths) + 1).tolist(), np.take(prices, lengths).tolist()
    position, clock = 0, 0.0
    while position < len(steps):
        clock += costs[position]
        position += steps[position]
    return position / clock


def prices_of(world: World) -> list[float]:
    """Seconds of a round that draws and verifies 0, 1, ... drafts."""
    curve = world.scenario.curve
    return [curve.round(m, m) for m in range(curve.drafts + 1)]


def oracle(world: World) -> float:
    """The rate of one who knows every acceptance probability, price and the going rate."""
    prices = prices_of(world)
    tokens = np.cumsum(np.cumprod(world.p, axis=1), axis=1)
    tokens = np.concatenate([np.zeros((len(tokens), 1)), tokens], axis=1) + 1
    rate = 1 / prices[0]
    for _ in range(8):
        rate = walk(world, np.argmax(tokens - rate * np.array(prices), axis=1), prices)
    return rate


def fixed_rates(world: World) -> list[float]:
    """The rate of every constant number of drafts; the first is plain decoding."""
    prices = prices_of(world)
    return [walk(world, np.full(len(world.p), m), prices) for m in range(len(prices))]


def curve(rows: Sequence[float], draft: float, per_draft: float = 0.0, **more: float) -> CostCurve:
    """A curve in milliseconds: seconds of 1..n rows, of a block, and of each draft drawn."""
    drafts = [1e-3 * (draft + per_draft * m) for m in range(1, len(rows))]
    return CostCurve(tuple(1e-3 * r for r in rows), tuple(drafts), **more)


def changed(scenario: Scenario, name: str, **fields: object) -> Scenario:
    """A variant under another name."""
    return replace(scenario, name=name, **fields)  # type: ignore[arg-type]
