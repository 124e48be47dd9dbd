"""Views of a target's model that hand out layer outputs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.cache import Replay, TargetCache
from dspark_mlx.errors import UnsupportedError

from .replay import Rerun, Tape

if TYPE_CHECKING:
    from .base import Target


class Tapped:
    """The target's forward with the outputs of some decoder layers. Stateless.

    Each call runs a shallow copy of the module tree on the path to the layers, whose layer list
    holds recording stand-ins: the arithmetic is mlx-lm's own, so logits are bit-identical, and
    the original model is not touched. Layer id -1 is the first layer's input (the embedding,
    scaled where the family scales it).
    """

    def __init__(self, target: Target, layer_ids: Sequence[int]) -> None:
        self._target = target
        self._ids = tuple(layer_ids)
        if bad := [i for i in self._ids if not -1 <= i < target.depth]:
            raise UnsupportedError(
                f"layers {bad} cannot be tapped: {target.name} has {target.depth} layers"
            )

    def __call__(self, ids: mx.array, cache: TargetCache) -> tuple[mx.array, list[mx.array]]:
        """Run ids [n] after the cached tokens -> logits [n, V], one [n, d] per tapped layer.

        Lazy; the cache grows by n. If the model raises, the cache is as it was.
        """
        rows = ids.shape[0]
        records: dict[int, mx.array] = {}
        tape = self._tape(rows, cache)
        model = self._target.model
        if self._ids or tape:
            model = _with_layers(model, self._target.family.path, self._stand_ins(records, tape))
        cache.mark()
        try:
            logits = model(ids[None], cache=cache.entries)
        except BaseException:
            cache.undo()
            raise
        cache.grew(rows, self._replay(ids, cache, tape))
        return logits[0], [records[i][0] for i in self._ids]

    def _tape(self, rows: int, cache: TargetCache) -> Tape | None:
        # of a single row nothing can be kept but all or none
        if self._target.family.mixer and 1 < rows <= Tape.MOST_ROWS and cache.replays:
            return Tape()
        return None

    def _replay(self, ids: mx.array, cache: TargetCache, tape: Tape | None) -> Replay | None:
        if not cache.replays:
            return None
        if tape is not None and tape.covers(cache.recurrent()):
            return tape
        return Rerun(self._target.model, ids, cache)

    def _stand_ins(self, records: dict[int, mx.array], tape: Tape | None) -> list[Any]:
        layers = list(self._target.family.layers(self._target.model))
        mixer = self._target.family.mixer
        if tape is not None and mixer is not None:
            layers = [tape.record(layer, mixer) if mixer in layer else layer for layer in layers]
        for i in self._ids:
            at = max(i, 0)
            layers[at] = _Recorder(layers[at], records, i)
        return layers


class _Recorder:
    """Calls a layer and keeps its output (or, for id -1, its input)."""

    def __init__(self, layer: Any, records: dict[int, mx.array], layer_id: int) -> None:
        self._layer, self._records, self._id = layer, records, layer_id

    def __call__(self, hidden: mx.array, *args: Any, **kwargs: Any) -> Any:
        output = self._layer(hidden, *args, **kwargs)
        first = output[0] if isinstance(output, tuple) else output
        self._records[self._id] = hidden if self._id == -1 else first
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def _with_layers(model: nn.Module, path: Sequence[str], layers: list[Any]) -> nn.Module:
    """A copy of `model` that shares everything but the list at `path`."""
    view = copy.copy(model)
    if len(path) == 1:
        view[path[0]] = layers
    else:
        view[path[0]] = _with_layers(model[path[0]], path[1:], layers)
    return view
