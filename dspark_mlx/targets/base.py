"""A target: an untouched mlx-lm model, its shape, its caches, and views that tap its layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.cache import KVQuantization, TargetCache

from .families import Family, family_of
from .probe import probe, probe_quantized
from .tapped import Tapped


class Target:
    """`model` is mlx-lm's own model, never modified; `config` its config.json as a dict.

    `kv` is how its KV caches are quantized, None for not at all.
    """

    def __init__(
        self,
        model: nn.Module,
        config: dict[str, Any],
        name: str = "target",
        kv: KVQuantization | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.name = name
        self.family: Family = family_of(model, config)
        self.kv = kv
        self._quantizable: set[tuple[int, int]] = set()

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
        return int(self._size("vocab_size"))

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return int(self._size("hidden_size"))

    @property
    def context_limit(self) -> int | None:
        """Positions the model was made for, where its config says so."""
        return self.text_config.get("max_position_embeddings")

    def _size(self, key: str) -> Any:
        return self.text_config[key] if key in self.text_config else self.config[key]

    def check(self) -> None:
        """Raise UnsupportedError, naming the layer or cache, where this model cannot be a target.

        Builds one small step and computes nothing.
        """
        probe(self)
        self._quantizable_or_raise(self.kv)

    def new_cache(
        self,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        quantized_kv_start: int = 0,
    ) -> TargetCache:
        """An empty cache. `kv_bits` quantizes it as mlx-lm's generation would, None as `kv` says.

        Raises UnsupportedError where rejected drafts could not be removed or the caches not be
        quantized, OptionError for a value that makes no sense.
        """
        kv = self.kv
        if kv_bits is not None:
            kv = KVQuantization(kv_bits, kv_group_size, quantized_kv_start)
        self._quantizable_or_raise(kv)
        return TargetCache(self.model, kv, name=self.name)

    def load_cache(self, path: str | Path) -> tuple[TargetCache, dict[str, str]]:
        """A cache that `TargetCache.save` wrote for this target, and its metadata.

        Raises CheckpointError where the file is damaged, another model's, or quantized in
        another way than `kv` says.
        """
        return TargetCache.load(self.model, path, self.kv, name=self.name)

    def _quantizable_or_raise(self, kv: KVQuantization | None) -> None:
        if kv is not None and (kv.bits, kv.group_size) not in self._quantizable:
            probe_quantized(self, kv)
            self._quantizable.add((kv.bits, kv.group_size))

    def embed(self, ids: mx.array) -> mx.array:
        """The raw embedding rows of ids [n] -> [n, d] (de-quantized, without any scale)."""
        return self.family.embedding(self.model)(ids)

    def head(self, hidden: mx.array) -> mx.array:
        """The raw output head, [n, d] -> [n, V], without norm or soft cap."""
        head = self.family.head(self.model)
        # a tied head is the embedding, which a quantized model holds as another class
        return head.as_linear(hidden) if hasattr(head, "as_linear") else head(hidden)

    def tapped(self, layer_ids: Sequence[int] = ()) -> Tapped:
        """A view of the model that records these layers' outputs (see Tapped)."""
        return Tapped(self, layer_ids)
