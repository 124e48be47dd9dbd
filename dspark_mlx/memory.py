"""What a request will take in memory, known before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import mlx.core as mx
from mlx.utils import tree_flatten

from .pair import Pair
from .targets.base import Target


@dataclass(frozen=True)
class Growth:
    """Bytes of a cache as a function of its length."""

    fixed: int = 0  # whatever the length
    rows: tuple[tuple[int, float], ...] = ()  # (bytes per position, most positions held)

    def at(self, length: int) -> int:
        """Bytes that `length` positions take."""
        return self.fixed + int(sum(size * min(length, most) for size, most in self.rows))


def request_bytes(pair: Pair, begin: int, end: int, window: int | None, chunk: int) -> int:
    """Bytes that going from `begin` to `end` positions adds, beyond what is in memory now.

    Target cache, drafter context, and the rows of one prefill chunk; an estimate.
    """
    growths = [target_growth(pair.target), *_drafter_growth(pair, window)]
    caches = sum(growth.at(end) - growth.at(begin) for growth in growths)
    return caches + _chunk_bytes(pair, min(chunk, end - begin), end)


def weight_bytes(pair: Pair) -> int:
    """Bytes of target and drafter, shared arrays once."""
    modules = [pair.target.model, *([pair.drafter] if isinstance(pair.drafter, dict) else [])]
    arrays = {id(a): a.nbytes for module in modules for a in _arrays(module.parameters())}
    return sum(arrays.values())


def budget() -> int:
    """Bytes that MLX may use in all: the device's working set, or the limit set in MLX."""
    device = mx.device_info()
    return int(device.get("max_recommended_working_set_size") or mx.get_memory_limit())


def available() -> int:
    """Bytes left now; every session of the process draws on the same budget."""
    return max(budget() - mx.get_active_memory(), 0)


def gigabytes(count: int) -> str:
    """For a message."""
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"


_MEASURED: WeakKeyDictionary[Target, Growth] = WeakKeyDictionary()


def target_growth(target: Target) -> Growth:
    """How the target's cache grows: the shapes that one position leaves in it, not evaluated."""
    if target not in _MEASURED:
        cache = target.new_cache()
        target.model(mx.array([[0]]), cache=cache.entries)
        _MEASURED[target] = _growth_of(cache.entries)
    return _MEASURED[target]


def _growth_of(entries: Iterable[Any]) -> Growth:
    fixed, rows = 0, []
    for entry in _leaves(entries):
        keys = getattr(entry, "keys", None)
        arrays = _arrays(entry.state)
        if keys is None:
            fixed += sum(a.nbytes for a in arrays)
            continue
        held = _arrays(keys)[0].shape[-2]
        most = getattr(entry, "max_size", None) or math.inf
        rows.append((sum(a.nbytes for a in arrays) // held, most))
    return Growth(fixed, tuple(rows))


def _leaves(entries: Iterable[Any]) -> Iterable[Any]:
    for entry in entries:
        nested = getattr(entry, "caches", None)
        yield from _leaves(nested) if nested else (entry,)


def _arrays(tree: Any) -> list[mx.array]:
    return [leaf for _, leaf in tree_flatten(tree) if isinstance(leaf, mx.array)]


def _drafter_growth(pair: Pair, window: int | None) -> Iterable[Growth]:
    if pair.drafter is None:
        return
    config = pair.drafter.config
    per_layer = 2 * config.num_key_value_heads * config.head_dim * _item_size(config.dtype)
    most = math.inf if window is None else float(window)
    yield Growth(0, ((config.num_hidden_layers * per_layer, most),))


def _chunk_bytes(pair: Pair, rows: int, end: int) -> int:
    """One chunk's widest rows (the feed-forward's), residual rows, and the tapped ones.

    The CPU backend also keeps a layer's attention scores whole.
    """
    text, config = pair.target.text_config, pair.drafter and pair.drafter.config
    inner = text.get("intermediate_size")
    inner = inner if isinstance(inner, int) else 4 * pair.target.hidden_size
    taps = len(config.target_layer_ids) if config else 0
    scores = end * int(text.get("num_attention_heads") or 0) if mx.default_device() == mx.cpu else 0
    return rows * 4 * (3 * inner + (taps + 4) * pair.target.hidden_size + scores)


def _item_size(dtype: str) -> int:
    return 4 if dtype == "float32" or mx.default_device() == mx.cpu else 2
