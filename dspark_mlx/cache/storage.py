"""Caches on disk: mlx-lm's prompt-cache file, with a line of ours in its metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from dspark_mlx.atomic import new_file
from dspark_mlx.errors import CheckpointError

from .kinds import leaves
from .quantization import KVQuantization

OURS, THEIRS = "dspark_mlx", "caller"  # keys of the file's metadata


def write_entries(
    path: Path, entries: Sequence[Any], own: dict[str, Any], metadata: dict[str, str]
) -> None:
    """Write the caches; `own` and `metadata` go along as JSON."""
    with new_file(path, suffix=".safetensors") as work:
        lines = {OURS: json.dumps(own), THEIRS: json.dumps(metadata)}
        save_prompt_cache(str(work), list(entries), lines)


def read_entries(
    path: Path, like: Sequence[Any], quantization: KVQuantization | None
) -> tuple[list[Any], dict[str, Any], dict[str, str]]:
    """The caches, our own values and the caller's metadata; CheckpointError on any misfit."""
    if not path.is_file():
        raise CheckpointError(f"{path} is not there; save a cache first")
    try:
        entries, lines = load_prompt_cache(str(path), return_metadata=True)
        own, metadata = json.loads(lines[OURS]), json.loads(lines[THEIRS])
        own["length"], own["exact_from"]
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is not a cache saved by this package: {reason}") from error
    found, wanted = _forms(entries), _forms(like)
    if quantization:
        wanted = [_quantized(form, seen) for form, seen in zip(wanted, found, strict=False)]
    if found != wanted:
        raise CheckpointError(f"{path} holds the caches of another model: {_differ(found, wanted)}")
    for leaf in leaves(entries):
        if type(leaf) is QuantizedKVCache and quantization:
            if (leaf.bits, leaf.group_size) != (quantization.bits, quantization.group_size):
                raise CheckpointError(
                    f"{path} holds {leaf.bits}-bit caches in groups of {leaf.group_size}, "
                    f"asked for {quantization.bits} and {quantization.group_size}"
                )
    return entries, own, metadata


def _forms(entries: Sequence[Any]) -> list[tuple[str, ...]]:
    return [
        (type(entry).__name__, *(type(leaf).__name__ for leaf in leaves([entry])))
        if type(entry) is CacheList
        else (type(entry).__name__,)
        for entry in entries
    ]


def _quantized(wanted: tuple[str, ...], found: tuple[str, ...]) -> tuple[str, ...]:
    # a cache that has come to where quantization starts is of the other class from then on
    fits = wanted == (KVCache.__name__,) and found == (QuantizedKVCache.__name__,)
    return found if fits else wanted


def _differ(found: Sequence[tuple[str, ...]], wanted: Sequence[tuple[str, ...]]) -> str:
    if len(found) != len(wanted):
        return f"{len(found)} caches, this target has {len(wanted)}"
    at = next(k for k, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b)
    return f"cache {at} is {'/'.join(found[at])}, this target has {'/'.join(wanted[at])}"
