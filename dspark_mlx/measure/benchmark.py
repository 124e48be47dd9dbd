"""Speed, measured fairly: every arm on every prompt, interleaved, warm, and counted.

Ratios are taken within a prompt and repeat, so that drift of the machine hits both sides, and
only where both did the same work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.sample_utils import make_sampler

from dspark_mlx.api import stream
from dspark_mlx.events import Finished, Prefilled, Round
from dspark_mlx.pair import Pair
from dspark_mlx.sampling import Sampling
from dspark_mlx.stats import Stats

from .arms import Arm
from .observe import Counter, watched

WARM_TOKENS = 8


@dataclass(frozen=True)
class Outcome:
    """One timed generation. Seconds are wall clock; memory is in GB, at its peak.

    `first` is the time to the first token, `decode` from there to the last token.
    """

    tokens: tuple[int, ...] = field(repr=False)
    first: float
    decode: float
    memory: float
    rounds: int | None = None
    committed: int | None = None
    syncs: int | None = None
    forwards: int | None = None
    rows: int | None = None
    drafted: int | None = None

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first one."""
        count = len(self.tokens) - 1
        return count / self.decode if count > 0 and self.decode > 0 else None

    @property
    def rate(self) -> float:
        """Tokens per second from the call to the last token."""
        return len(self.tokens) / (self.first + self.decode)


class Runner(Protocol):
    """A way to generate that can be timed."""

    name: str

    def run(self, ids: Sequence[int], max_tokens: int, sampling: Sampling, seed: int) -> Outcome:
        """Generate once."""


class PlainRunner:
    """mlx-lm's own plain generation: what every ratio is taken against."""

    name = "mlx-lm plain"

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def run(self, ids: Sequence[int], max_tokens: int, sampling: Sampling, seed: int) -> Outcome:
        """Generate once."""
        return _timed(_mlx_lm(self.pair, ids, max_tokens, sampling, seed))


class DraftModelRunner:
    """mlx-lm's own speculation with a small model of the same vocabulary."""

    def __init__(
        self, pair: Pair, draft_model: Any, name: str, drafts: int, sha256: str = ""
    ) -> None:
        self.pair, self._draft, self._drafts, self.sha256 = pair, draft_model, drafts, sha256
        self.name = f"mlx-lm draft {name} x{drafts}"

    def run(self, ids: Sequence[int], max_tokens: int, sampling: Sampling, seed: int) -> Outcome:
        """Generate once."""
        more = {"draft_model": self._draft, "num_draft_tokens": self._drafts}
        drafted: list[bool] = []
        outcome = _timed(_mlx_lm(self.pair, ids, max_tokens, sampling, seed, drafted, **more))
        rounds = sum(not taken for taken in drafted[1:])
        return Outcome(**vars(outcome) | {"rounds": rounds, "committed": len(drafted) - 1})


def _mlx_lm(
    pair: Pair,
    ids: Sequence[int],
    max_tokens: int,
    sampling: Sampling,
    seed: int,
    drafted: list[bool] | None = None,
    **more: Any,
) -> Iterator[int]:
    mx.random.seed(seed)
    sampler = make_sampler(sampling.temperature, sampling.top_p, sampling.min_p, 1, sampling.top_k)
    for response in stream_generate(
        pair.target.model, pair.tokenizer, list(ids), max_tokens=max_tokens, sampler=sampler, **more
    ):
        if drafted is not None:
            drafted.append(response.from_draft)
        yield response.token


def _timed(tokens: Iterator[int]) -> Outcome:
    mx.reset_peak_memory()
    begun = time.perf_counter()
    found: list[int] = []
    first = ended = begun
    for token in tokens:
        ended = time.perf_counter()
        if not found:
            first = ended
        found.append(token)
    return Outcome(tuple(found), first - begun, ended - first, mx.get_peak_memory() / 1e9)


class SpeculativeRunner:
    """An arm of ours, with its forwards and waits counted."""

    def __init__(self, arm: Arm) -> None:
        self.arm, self.name = arm, arm.name
        self._counter = Counter()
        self._pair = watched(arm.pair, self._counter)

    def run(self, ids: Sequence[int], max_tokens: int, sampling: Sampling, seed: int) -> Outcome:
        """Generate once."""
        outcome, _ = self.measured(ids, max_tokens, sampling, seed)
        return outcome

    def measured(
        self,
        ids: Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        seed: int,
        profile: bool = False,
    ) -> tuple[Outcome, Stats]:
        """Generate once; a profiled run times draft and verify apart and is slower."""
        self._counter.forwards = self._counter.rows = 0
        mx.reset_peak_memory()
        stats, tokens = Stats(), []
        begun = first = ended = time.perf_counter()
        events = stream(
            self._pair, ids, max_tokens=max_tokens, seed=seed, cutoff=self.arm.cutoff,
            block_size=self.arm.block_size, profile=profile, **vars(sampling),
        )  # fmt: skip
        for event in events:
            if isinstance(event, Prefilled):
                first = ended = time.perf_counter()
                tokens.append(event.token)
            elif isinstance(event, Round):
                ended = time.perf_counter()
                tokens += event.tokens
            elif isinstance(event, Finished):
                stats.add(event)
                break
            stats.add(event)
        outcome = Outcome(
            tuple(tokens), first - begun, ended - first, mx.get_peak_memory() / 1e9,
            rounds=stats.rounds, committed=stats.committed, syncs=stats.syncs,
            forwards=self._counter.forwards, rows=self._counter.rows, drafted=stats.proposed,
        )  # fmt: skip
        return outcome, stats


@dataclass(frozen=True)
class Case:
    """One cell of the grid: prompts of one context length at one temperature."""

    context: str
    sampling: Sampling
    prompts: tuple[tuple[str, tuple[int, ...]], ...] = field(repr=False)

    @property
    def label(self) -> str:
        """What the table calls it."""
        return f"{self.context}, temperature {self.sampling.temperature:g}"


@dataclass(frozen=True)
class Timing:
    """An outcome and where it belongs."""

    case: int
    arm: str
    prompt: str
    repeat: int
    outcome: Outcome


def measure(
    runners: Sequence[Runner],
    cases: Sequence[Case],
    max_tokens: int,
    repeats: int,
    seed: int,
    done: Callable[[str], None] = lambda note: None,
) -> list[Timing]:
    """Run everything; arms take turns in who is first, and each is warmed at each context."""
    timings = []
    for number, case in enumerate(cases):
        for runner in runners:
            runner.run(case.prompts[0][1], WARM_TOKENS, case.sampling, seed)
        for repeat in range(repeats):
            for turn, (label, ids) in enumerate(case.prompts):
                for k in range(len(runners)):
                    runner = runners[(k + turn + repeat) % len(runners)]
                    outcome = runner.run(ids, max_tokens, case.sampling, seed + turn)
                    timings.append(Timing(number, runner.name, label, repeat, outcome))
                    done(f"{case.context} {label} {runner.name}")
    return timings


def round_split(
    runner: SpeculativeRunner, case: Case, max_tokens: int, seed: int, prompts: int = 2
) -> dict[str, float] | None:
    """Milliseconds per round in draft, verify and everything else, from profiled runs."""
    total = Stats()
    for turn, (_, ids) in enumerate(case.prompts[:prompts]):
        _, stats = runner.measured(ids, max_tokens, case.sampling, seed + turn, profile=True)
        for name in ("rounds", "decode_seconds", "draft_seconds", "verify_seconds"):
            value = (getattr(total, name) or 0) + (getattr(stats, name) or 0)
            setattr(total, name, value)
    if not total.rounds:
        return None
    draft = 1000 * (total.draft_seconds or 0.0) / total.rounds
    verify = 1000 * (total.verify_seconds or 0.0) / total.rounds
    whole = 1000 * total.decode_seconds / total.rounds
    return {"draft_ms": draft, "verify_ms": verify, "other_ms": max(whole - draft - verify, 0.0)}
