"""Measure a pair's cost curve on this machine: seconds of target passes and of drafting."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import mlx.core as mx
from mlx_lm.generate import wired_limit

from .cache import TargetCache
from .costs import CostCurve, bucket_of
from .drafters.base import Drafter, Proposal
from .errors import OptionError
from .pair import Pair
from .verify import verify_greedy

QUICK_CONTEXT = 64  # positions; enough to be past the start, and soon prefilled
QUICK_SECONDS = 1.0  # about what a user may wait once, before the second token
FULL_CONTEXT = 256
FULL_SWEEPS = 9
CHUNK = 512


def ensure_curve(pair: Pair) -> None:
    """See to it that the pair has a cost curve for some context; measures one in a second.

    The quick curve is kept like a full one, so that a seeded run finds the same next time.
    """
    if pair.tuning.curves or pair.drafter is None:
        return
    curve = quick_curve(pair)
    with suppress(OSError):  # a data folder that cannot be written: known to this process only
        pair.tuning.add_curve(0, curve)
        return
    pair.tuning.add_curve(0, curve, keep=False)


def quick_curve(pair: Pair, seconds: float = QUICK_SECONDS) -> CostCurve:
    """A few points, with straight lines between them, in about `seconds` (one sweep at least)."""
    with _bench(pair, QUICK_CONTEXT) as bench:
        full = bench.drafts
        rows = sorted({1, 2, full + 1, (full + 3) // 2})
        jobs = {("verify", n): bench.verify(n) for n in rows}
        jobs |= {("draft", m): bench.draft(m) for m in sorted({1, full})}
        began, sweeps = time.perf_counter(), 0
        found: dict[tuple[str, int], list[float]] = {job: [] for job in jobs}
        while sweeps < 3 and (sweeps < 1 or time.perf_counter() - began < seconds):
            _sweep(jobs, found)
            sweeps += 1
        return _curve(_best(found, sweeps), full, QUICK_CONTEXT, sweeps, bench.build_seconds())


def full_curve(pair: Pair, context: int = FULL_CONTEXT, sweeps: int = FULL_SWEEPS) -> CostCurve:
    """Every number of rows and drafts, medians of interleaved sweeps, at a context length."""
    with _bench(pair, context) as bench:
        full = bench.drafts
        jobs = {("verify", n): bench.verify(n) for n in range(1, full + 2)}
        jobs |= {("draft", m): bench.draft(m) for m in range(1, full + 1)}
        jobs |= {("round", m): bench.round(m) for m in {1, full}}
        if bench.confident:
            jobs["look", full] = bench.round(full, look=True)
        found: dict[tuple[str, int], list[float]] = {job: [] for job in jobs}
        _sweep(jobs, {job: [] for job in jobs})  # kernels are compiled at their first use
        for _ in range(sweeps):
            _sweep(jobs, found)
        middle = {job: statistics.median(times) for job, times in found.items()}
        return _curve(middle, full, context, sweeps, 0.0)


def measure(pair: Pair, context: int = FULL_CONTEXT) -> CostCurve:
    """Measure a full curve and keep it for its context bucket."""
    curve = full_curve(pair, context)
    pair.tuning.add_curve(bucket_of(context), curve)
    return curve


def _sweep(
    jobs: dict[tuple[str, int], Callable[[], None]], found: dict[tuple[str, int], list[float]]
) -> None:
    for job, run in jobs.items():
        began = time.perf_counter()
        run()
        found[job].append(time.perf_counter() - began)


def _best(found: dict[tuple[str, int], list[float]], sweeps: int) -> dict[tuple[str, int], float]:
    # the first of several pays for compilation; of so few, the smallest is the least disturbed
    return {job: min(times[1:] if sweeps > 1 else times) for job, times in found.items()}


def _curve(
    times: dict[tuple[str, int], float], drafts: int, context: int, sweeps: int, look: float
) -> CostCurve:
    verify = {n: s for (kind, n), s in times.items() if kind == "verify"}
    draft = {m: s for (kind, m), s in times.items() if kind == "draft"}
    rounds = {m: s for (kind, m), s in times.items() if kind == "round"}
    excess = [s - verify[m + 1] - draft[m] for m, s in rounds.items()]
    if (looked := times.get(("look", drafts))) is not None:
        look = max(looked - rounds[drafts], 0.0)
    return CostCurve.through(
        verify, draft, drafts, overhead=statistics.fmean(excess) if excess else 0.0, look=look,
        context=context, sweeps=sweeps,
    )  # fmt: skip


@contextmanager
def _bench(pair: Pair, context: int) -> Iterator[_Bench]:
    if pair.drafter is None:
        raise OptionError("without a drafter there is no cost curve to measure")
    room = pair.target.context_limit
    if room is not None and context + pair.drafter.block_size + 1 > room:
        raise OptionError(f"{pair.target.name} has room for {room} positions, not for {context}")
    with wired_limit(pair.target.model):
        yield _Bench(pair, pair.drafter, context)
    mx.clear_cache()


class _Bench:
    """A cache of `context` arbitrary tokens, and the pieces of a greedy round over it."""

    def __init__(self, pair: Pair, drafter: Drafter, context: int) -> None:
        self._pair, self._drafter = pair, drafter
        self.drafts = drafter.drafts_of(drafter.block_size)
        self.confident = drafter.config.confidence is not None
        self._cache: TargetCache = pair.target.new_cache()
        self._context = drafter.start()
        ids = [(7 + 13 * k) % pair.target.vocab_size for k in range(context + 1)]
        for begin in range(0, context, CHUNK):
            part = ids[begin : min(begin + CHUNK, context)]
            _, features = pair.tapped(mx.array(part), self._cache)
            following = mx.array(ids[begin + 1 : begin + 1 + len(part)])
            drafter.extend(self._context, features, following)
            mx.eval(self._cache.arrays(), self._context.arrays())
        self._anchor = ids[-1]

    def verify(self, rows: int) -> Callable[[], None]:
        """A target pass over so many rows, down to the verdict."""
        drafts = mx.array([self._anchor] * (rows - 1), dtype=mx.int32)
        return lambda: self._pass(Proposal(drafts), None)

    def draft(self, count: int) -> Callable[[], None]:
        """A block of which so many drafts are drawn."""

        def run() -> None:
            drawn = self._propose(count)
            mx.eval(drawn.tokens, *([] if drawn.confidence is None else [drawn.confidence]))

        return run

    def round(self, count: int, look: bool = False) -> Callable[[], None]:
        """Both in one graph; or with a wait for the confidences between them."""

        def run() -> None:
            drawn = self._propose(count)
            mx.async_eval(drawn.tokens)
            if look:
                mx.eval(drawn.confidence)
            self._pass(drawn, drawn.confidence)

        return run

    def build_seconds(self) -> float:
        """Host time of building a pass: what a look takes from the overlap, at the least."""
        began = time.perf_counter()
        self._forward(Proposal(mx.array([self._anchor] * self.drafts, dtype=mx.int32)))
        seconds = time.perf_counter() - began
        self._cache.keep(self._cache.length - self.drafts - 1)
        return seconds

    def _propose(self, count: int) -> Proposal:
        def pick(logits: mx.array) -> tuple[mx.array, None]:
            return mx.argmax(logits, axis=-1), None

        slots = self._drafter.block_size
        return self._drafter.propose(self._context, self._anchor, slots, count, pick)

    def _forward(self, drafts: Proposal) -> mx.array:
        ids = mx.concatenate([mx.array([self._anchor]), drafts.tokens])
        logits, _ = self._pair.tapped(ids, self._cache)
        return logits

    def _pass(self, drafts: Proposal, confidence: Any) -> None:
        length = self._cache.length
        verdict = verify_greedy(drafts.tokens, self._forward(drafts))
        mx.eval(verdict.accepted, verdict.final, *([] if confidence is None else [confidence]))
        self._cache.keep(length)
