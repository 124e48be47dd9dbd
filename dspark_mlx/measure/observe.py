"""Watching the target of a generation: its forwards counted or kept, or run row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from dspark_mlx.cache import TargetCache
from dspark_mlx.pair import Pair
from dspark_mlx.targets.base import Target
from dspark_mlx.targets.tapped import Tapped

# the inner forward, ids [n], the cache -> logits [n, V] and one feature array per tapped layer
Forward = Callable[[Tapped, mx.array, TargetCache], tuple[mx.array, list[mx.array]]]


class WatchedTapped(Tapped):
    """A tapped view whose calls go through `forward`."""

    def __init__(self, target: Target, layer_ids: Sequence[int], forward: Forward) -> None:
        super().__init__(target, layer_ids)
        self._inner = target.tapped(layer_ids)  # which may be watched itself
        self._forward = forward

    def __call__(self, ids: mx.array, cache: TargetCache) -> tuple[mx.array, list[mx.array]]:
        """See Tapped."""
        return self._forward(self._inner, ids, cache)


class WatchedTarget(Target):
    """The same model; every tapped forward of it goes through `forward`."""

    def __init__(self, target: Target, forward: Forward) -> None:
        super().__init__(target.model, target.config, target.name, target.kv)
        self._watching, self._forward = target, forward

    def tapped(self, layer_ids: Sequence[int] = ()) -> Tapped:
        """See Target.tapped."""
        return WatchedTapped(self._watching, layer_ids, self._forward)


def watched(pair: Pair, forward: Forward) -> Pair:
    """The pair, its target's forwards run through `forward`."""
    return dataclasses.replace(pair, target=WatchedTarget(pair.target, forward))


class Counter:
    """Counts forwards and the rows they ran."""

    def __init__(self) -> None:
        self.forwards = self.rows = 0

    def __call__(
        self, inner: Tapped, ids: mx.array, cache: TargetCache
    ) -> tuple[mx.array, list[mx.array]]:
        """Run and count."""
        self.forwards += 1
        self.rows += ids.shape[0]
        return inner(ids, cache)


@dataclass
class Pass:
    """One forward: logits [n, V] for the positions from `start` on, lazy or evaluated."""

    start: int
    logits: mx.array


class Recorder:
    """Keeps forwards until its owner clears them."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []

    def __call__(
        self, inner: Tapped, ids: mx.array, cache: TargetCache
    ) -> tuple[mx.array, list[mx.array]]:
        """Run and keep."""
        start = cache.length
        logits, features = inner(ids, cache)
        self.passes.append(Pass(start, logits))
        return logits, features

    def covering(self, position: int) -> Pass:
        """The forward that gave the logits row of a position."""
        return next(p for p in self.passes if 0 <= position - p.start < p.logits.shape[0])


def row_exact(pair: Pair, prompt_tokens: int) -> Pair:
    """The pair with verification one row at a time, as plain decoding runs it (greedy only).

    Forwards within the prompt's `prompt_tokens` positions run as they are. After them a draft
    is given to the target only once it is known to be the target's own word: no row that is
    later rejected ever runs, and every forward has the width and the cache of plain decoding.
    Whatever differs from plain decoding then is logic, not rounding.
    """
    stops = pair.stop_ids

    def forward(
        inner: Tapped, ids: mx.array, cache: TargetCache
    ) -> tuple[mx.array, list[mx.array]]:
        if cache.length + ids.shape[0] <= prompt_tokens:
            return inner(ids, cache)
        tokens = [int(token) for token in ids]
        rows, features = [], []
        for k, token in enumerate(tokens):
            logits, taps = inner(mx.array([token]), cache)
            rows.append(logits)
            features.append(taps)
            following = tokens[k + 1] if k + 1 < len(tokens) else None
            if following in stops or mx.argmax(logits[0]).item() != following:
                break
        missing = len(tokens) - len(rows)
        if missing:
            rows.append(mx.zeros((missing, rows[0].shape[-1]), rows[0].dtype))
        layers = [mx.concatenate(list(one)) for one in zip(*features, strict=True)]
        return mx.concatenate(rows), layers

    return watched(pair, forward)
