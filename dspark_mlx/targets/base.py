"""A target: an untouched mlx-lm model, and views of it that also hand out layer outputs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.cache import TargetCache
from dspark_mlx.errors import UnsupportedError

from .families import Family, family_of


class Target:
    """`model` is mlx-lm's own model, never modified; `config` its config.json as a dict."""

    def __init__(self, model: nn.Module, config: dict[str, Any], name: str = "target") -> None:
        self.model = model
        self.config = config
        self.name = name
        self.family: Family = family_of(model, config)

    @property
    def text_config(self) -> dict[str, Any]:
        """The part of the config that describes the language model."""
        return self.config.get("text_config") or self.config

    @property
    def depth(self) -> int:
        """Number of decoder layers."""
        return len(self.family.layers(self.model))

    @property
    def vocab_size(self) -> int:
        """Rows of the output head (padding rows included)."""
        return int(self.text_config["vocab_size"])

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return int(self.text_config["hidden_size"])

    @property
    def context_limit(self) -> int | None:
        """Positions the model was made for, where its config says so."""
        return self.text_config.get("max_position_embeddings")

    def new_cache(self) -> TargetCache:
        """An empty cache; raises UnsupportedError where rejected drafts could not be removed."""
        return TargetCache(self.model)

    def load_cache(self, path: Path) -> tuple[TargetCache, dict[str, str]]:
        """A cache that `TargetCache.save` wrote for this target, and its metadata."""
        return TargetCache.load(self.model, path)

    def embed(self, ids: mx.array) -> mx.array:
        """The raw embedding rows of ids [n] -> [n, d] (de-quantized, without any scale)."""
        return self.family.embedding(self.model)(ids)

    def head(self, hidden: mx.array) -> mx.array:
        """The raw output head, [n, d] -> [n, V], without norm or soft cap."""
        head = self.family.head(self.model)
        return head.as_linear(hidden) if isinstance(head, nn.Embedding) else head(hidden)

    def tapped(self, layer_ids: Sequence[int] = ()) -> Tapped:
        """A view of the model that records these layers' outputs (see Tapped)."""
        return Tapped(self, layer_ids)


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

        Lazy; the cache grows by n.
        """
        records: dict[int, mx.array] = {}
        model = self._target.model
        if self._ids:
            model = _with_layers(model, self._target.family.path, self._stand_ins(records))
        cache.mark()
        logits = model(ids[None], cache=cache.entries)
        cache.grew(ids.shape[0])
        return logits[0], [records[i][0] for i in self._ids]

    def _stand_ins(self, records: dict[int, mx.array]) -> list[Any]:
        layers = list(self._target.family.layers(self._target.model))
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
