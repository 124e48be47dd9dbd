"""Caches on disk: mlx-lm's prompt-cache file, with a line of ours in its metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import (
    KVCache,
    QuantizedKVCache,
    load_prompt_cache,
    save_prompt_cache,
)

from dspark_mlx.atomic import new_file
from dspark_mlx.errors import CheckpointError

from .kinds import arrays_of, kind_of, leaves
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
        offsets = [kind_of(leaf).offset(leaf) for leaf in leaves(entries)]
        if any(offset not in (own["length"], None) for offset in offsets):
            raise ValueError(f"its caches hold {offsets} positions, it says {own}")
        own["exact_from"]
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} is not a cache saved by this package: {reason}") from error
    if len(entries) != len(like):
        misfit = f"{len(entries)} caches, this target has {len(like)}"
        raise CheckpointError(f"{path} holds the caches of another model: {misfit}")
    for at, (entry, fresh) in enumerate(zip(entries, like, strict=True)):
        if quantization and type(fresh) is KVCache and type(entry) is QuantizedKVCache:
            fresh = fresh.to_quantized(quantization.group_size, quantization.bits)
        found, wanted = _form(entry), _form(fresh)
        if found != wanted and not (entry.empty() and type(entry) is type(fresh)):
            misfit = f"cache {at} is {found}, this target has {wanted}"
            raise CheckpointError(f"{path} holds the caches of another model: {misfit}")
    return entries, own, metadata


def _form(entry: Any) -> str:
    """Class, shapes and types of a cache, its rows not counted."""
    parts = []
    for leaf in leaves([entry]):
        by_row = hasattr(leaf, "keys")
        arrays = [
            (a.shape[:-2] + a.shape[-1:] if by_row else a.shape, a) for a in arrays_of([leaf])
        ]
        shapes = ", ".join(f"{shape} {str(a.dtype).split('.')[-1]}" for shape, a in arrays)
        parts.append(f"{type(leaf).__name__} [{shapes}]")
    return " and ".join(parts)
