"""Bringing recurrent states to a point inside the last forward, for when drafts are rejected."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache

from dspark_mlx.cache import TargetCache


class Rerun:
    """Runs the first rows through the whole target again: right for any model."""

    whole = True

    def __init__(self, model: nn.Module, ids: mx.array, cache: TargetCache) -> None:
        self._model, self._ids, self._cache = model, ids, cache

    def __call__(self, rows: int) -> None:
        """Lazy, and only what the caches depend on is ever computed."""
        self._model(self._ids[None, :rows], cache=self._cache.entries)


class Tape:
    """What the projections of the recurrent mixers gave in one forward, row by row.

    A replay calls the mixers again, mlx-lm's own code, with the projections' outputs cut to the
    rows that stay: no weight is read, and only the states are computed, since nobody asks for
    the rest. Right for mixers that take rows of anything but their linear layers from the
    state alone, in order (checked per family by the tests).
    """

    whole = False
    MOST_ROWS = 64  # a tape of a longer forward (a prompt's) would take more memory than it saves

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def record(self, layer: nn.Module, name: str) -> nn.Module:
        """A view of the layer whose child `name` puts its calls on this tape."""
        view = copy.copy(layer)
        view[name] = _Taped(layer[name], self._calls)
        return view

    def covers(self, entries: list[Any]) -> bool:
        """Whether the tape has one call for each of these entries, and no other."""
        return [id(call.entry) for call in self._calls] == [id(entry) for entry in entries]

    def __call__(self, rows: int) -> None:
        for call in self._calls:
            call.again(rows)


class _Call:
    """One call of a mixer with a state: its arguments, and what its linear layers gave."""

    def __init__(self, mixer: nn.Module, inputs: mx.array, args: Any, kwargs: Any) -> None:
        self.mixer, self.inputs, self.args, self.kwargs = mixer, inputs, args, kwargs
        values = (*args, *kwargs.values())
        self.entry = next((value for value in values if type(value) is ArraysCache), None)
        # a mask would have to be cut too; one sequence without padding has none
        self.plain = not any(isinstance(value, mx.array) for value in values)
        self.outputs: dict[str, mx.array] = {}  # name of a linear child -> [1, rows, width]

    def first(self) -> Any:
        """Run the mixer, keeping what its linear layers give."""

        def listen(name: str, layer: nn.Module) -> Callable[[mx.array], mx.array]:
            def call(rows: mx.array) -> mx.array:
                self.outputs[name] = layer(rows)
                return self.outputs[name]

            return call

        return self._run(listen, self.inputs)

    def again(self, rows: int) -> None:
        """Bring the state forward by the first rows."""

        def say(name: str, layer: nn.Module) -> Callable[[mx.array], mx.array]:
            return lambda _: self.outputs[name][:, :rows]

        self._run(say, self.inputs[:, :rows])

    def _run(self, stand_in: Callable[[str, nn.Module], Any], inputs: mx.array) -> Any:
        view = copy.copy(self.mixer)
        for name, child in self.mixer.items():
            if isinstance(child, nn.Linear | nn.QuantizedLinear):
                view[name] = stand_in(name, child)
        return view(inputs, *self.args, **self.kwargs)


class _Taped:
    """Stands in for a mixer."""

    def __init__(self, mixer: nn.Module, calls: list[_Call]) -> None:
        self._mixer, self._calls = mixer, calls

    def __call__(self, inputs: mx.array, *args: Any, **kwargs: Any) -> Any:
        call = _Call(self._mixer, inputs, args, kwargs)
        if call.entry is None or not call.plain:
            return self._mixer(inputs, *args, **kwargs)
        self._calls.append(call)
        return call.first()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mixer, name)
