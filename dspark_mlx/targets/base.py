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
    """`model` is mlx-lm's own model, never modified; `config` its config.json as a dict."""

    def __init__(self, model: nn.Module, config: dict[str, Any], name: str = "target") -> None:
        self.model = model
        self.config = config
        self.name = name
        self.family: Family = family_of(model, config)
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

    def new_cache(
        self,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        quantized_kv_start: int = 0,
    ) -> TargetCache:
        """An empty cache; with `kv_bits`, quantized as mlx-lm's generation would.

        Raises UnsupportedError where rejected drafts could not be removed or the caches not be
        quantized, OptionError for a value that makes no sense.
        """
        quantization = self._quantization(kv_bits, kv_group_size, quantized_kv_start)
        return TargetCache(self.model, quantization, name=self.name)

    def load_cache(
        self,
        path: str | Path,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        quantized_kv_start: int = 0,
    ) -> tuple[TargetCache, dict[str, str]]:
        """A cache that `TargetCache.save` wrote for this target, and its metadata.

        Raises CheckpointError where the file is damaged or another model's.
        """
        quantization = self._quantization(kv_bits, kv_group_size, quantized_kv_start)
        return TargetCache.load(path, self.model, quantization, name=self.name)

    def _quantization(self, bits: int | None, group: int, start: int) -> KVQuantization | None:
        if bits is None:
            return None
        quantization = KVQuantization(bits, group, start)
        if (bits, group) not in self._quantizable:
            probe_quantized(self, quantization)
            self._quantizable.add((bits, group))
        return quantization

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
