"""Judgements that several test files share: a whole run, the waits of a run, chi-square."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx import Finished, Prefilled, Prefilling, Round
from dspark_mlx.options import Options
from dspark_mlx.pair import Pair
from dspark_mlx.run import run_events
from dspark_mlx.sync import Host

from .fakes import Plain, ScriptedDrafter


def check_run(
    pair: Pair, reference: Plain, limit: int, *, atol: float = 1e-4, **options
) -> list[Round]:
    """Generate, hold everything against plain decoding, and return the rounds.

    Whole blocks are verified where the options name no cutoff, so that rounds can be foretold.
    """
    options = {"max_tokens": limit, "logprobs": True, "cutoff": "full"} | options
    events = run_events(pair, reference.prompt, Options.of(**options))
    first, *rounds, last = (e for e in events if not isinstance(e, Prefilling))
    assert (type(first), type(last)) == (Prefilled, Finished)
    want, reason = reference.until(limit, pair.stop_ids)
    tokens = [first.token] + [t for r in rounds for t in r.tokens]
    assert tokens == want, options
    assert last.reason == reason, options
    assert last.tokens == len(tokens) <= limit
    assert [e.finish_reason for e in (first, *rounds)] == [None] * len(rounds) + [reason]
    shown = [t for t in want if t not in pair.stop_ids]
    assert "".join([first.text] + [r.text for r in rounds]) == pair.tokenizer.decode(shown)
    logprobs = [first.logprob] + [value for r in rounds for value in r.logprobs]
    np.testing.assert_allclose(logprobs, reference.logprobs[: len(want)], atol=atol)
    full = [*reference.prompt, *want]
    position = len(reference.prompt)
    for index, event in enumerate(rounds, 1):
        check_round(event, index, full, position)
        position += len(event.tokens)
    if isinstance(pair.drafter, ScriptedDrafter):
        pair.drafter.check(full)
    return rounds


def check_round(event: Round, index: int, full: list[int], position: int) -> None:
    """One round's record agrees with itself and with the committed sequence `full`."""
    assert event.index == index
    assert (event.anchor, event.anchor_position) == (full[position], position)
    committed = full[position + 1 : position + 1 + len(event.tokens)]
    assert list(event.tokens) == committed
    assert len(event.texts) == len(event.tokens) == len(event.logprobs) == event.accept_len
    assert committed[: event.accepted] == list(event.proposed[: event.accepted])
    assert event.accepted <= event.proposal_len <= event.verified <= len(event.proposed)
    if event.origin is None:
        assert (event.final, event.finish_reason) == (None, "stop")
        assert event.accepted == event.proposal_len == len(event.tokens)
        return
    assert event.final == committed[-1]
    assert event.accepted == len(event.tokens) - 1
    assert event.proposal_len == event.verified
    if event.verified == 0:
        assert event.origin == "plain"
    elif event.accepted == event.verified:
        assert event.origin == "bonus"
    else:
        assert event.origin == "correction"
        assert event.proposed[event.accepted] != event.final


class Waits:
    """Counts `mx.eval` calls, and reads of array values outside `Host.read` (each may wait)."""

    READERS = ("item", "tolist", "__bool__", "__int__", "__index__", "__float__", "__array__")

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.evals, self.strays, self._reading = 0, [], False
        evaluate, read = mx.eval, Host.read

        def counted(*arrays):
            self.evals += 1
            evaluate(*arrays)

        def inside(host, *arrays, **more):
            self._reading = True
            try:
                return read(host, *arrays, **more)
            finally:
                self._reading = False

        patch.setattr(mx, "eval", counted)
        patch.setattr(Host, "read", inside)
        for name in self.READERS:
            patch.setattr(mx.array, name, self._watched(name, getattr(mx.array, name)))

    def _watched(self, name, method):
        def reader(array, *args, **kwargs):
            if not self._reading:
                self.strays.append(name)
            return method(array, *args, **kwargs)

        return reader


def chi_square(counts, law) -> float:
    """p-value of counts [..., n] against probabilities of the same shape, one law per row.

    Rare cells of a row are pooled; a row too thin for two cells says nothing.
    """
    counts, law = np.atleast_2d(counts).astype(float), np.atleast_2d(law).astype(float)
    assert counts[law <= 0].sum() == 0, "drew something of probability zero"
    parts = [_statistic(c, p) for c, p in zip(counts, law, strict=True) if c.sum() > 0]
    return chi_square_tail(sum(x for x, _ in parts), sum(f for _, f in parts))


def _statistic(counts, law) -> tuple[float, int]:
    expected = law / law.sum() * counts.sum()
    order = np.argsort(expected)
    below = np.cumsum(expected[order])
    pooled = max(1, int((expected[order] < 5).sum()))
    while pooled < len(order) and below[pooled - 1] < 5:
        pooled += 1
    groups = [order[:pooled], *order[pooled:, None]]
    ours, want = (np.array([v[g].sum() for g in groups]) for v in (counts, expected))
    ours, want = ours[want > 0], want[want > 0]
    return float(((ours - want) ** 2 / want).sum()), len(want) - 1


def chi_square_tail(x: float, freedom: int) -> float:
    """P(chi-square > x), exactly, by the recursion in steps of two degrees of freedom."""
    if freedom == 0:  # nothing was left to chance
        return 1.0
    half = x / 2
    tail = math.exp(-half) if freedom % 2 == 0 else math.erfc(math.sqrt(half))
    degrees = 2 if freedom % 2 == 0 else 1
    while degrees < freedom:
        power = degrees / 2
        tail += math.exp(power * math.log(half) - half - math.lgamma(power + 1)) if half else 0.0
        degrees += 2
    return tail
