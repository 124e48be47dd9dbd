"""Copies of the target's embedding and head inside a drafter: found by value, kept once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .targets.base import Target

PROBES = 64  # rows that are compared before all are
EQUAL, DIFFERS = "equal to the target's", "the target's is used, though it differs"


def copies(weights: Mapping[str, mx.array], target: Target) -> dict[str, nn.Module]:
    """Names of a drafter's tables that hold the target's own values -> the target's module.

    A quantized table is never a copy. A copy may be stored in a wider dtype than the original.
    """
    theirs = _tables(target)
    return {name: theirs[name] for name in theirs if name in weights and _same(
        weights[name], theirs[name]
    )}  # fmt: skip


def find_copies(weights: Mapping[str, mx.array], target: Target, share: bool) -> dict[str, str]:
    """Tensors to leave out because the target holds them, with the reason for each.

    Equal values are always shared. With `share` differing or quantized ones are too: the
    drafter then drafts with the target's tables, and may accept less.
    """
    dropped = dict.fromkeys(copies(weights, target), EQUAL)
    if share:
        # a head of fewer rows has no counterpart in the target
        own = {"lm_head.weight"} if "draft_ids" in weights else set()
        held = [name for name in _tables(target) if name in weights and name not in own]
        rest = [name for name in held if name not in dropped]
        dropped |= dict.fromkeys(rest, DIFFERS)
    return dropped


def share_tables(drafter: Any, target: Target) -> None:
    """Let a loaded drafter use the target's arrays where its own are equal, dtype and all.

    Released drafters ship whole copies of both tables: on Qwen3-4B 1.6 GB in bfloat16.
    """
    owned = {
        f"{name}.weight": drafter[name].weight
        for name in ("embed_tokens", "lm_head")
        if name in drafter and "scales" not in drafter[name]
    }
    for name, theirs in copies(owned, target).items():
        if owned[name].dtype == theirs.weight.dtype:
            drafter[name.removesuffix(".weight")].weight = theirs.weight


def _tables(target: Target) -> dict[str, nn.Module]:
    return {
        "embed_tokens.weight": target.family.embedding(target.model),
        "lm_head.weight": target.family.head(target.model),
    }


def _same(ours: mx.array, module: nn.Module) -> bool:
    if "scales" in module or ours.shape != module.weight.shape:
        return False
    step = max(ours.shape[0] // PROBES, 1)
    return _equal(ours[::step], module.weight[::step]) and _equal(ours, module.weight)


def _equal(ours: mx.array, theirs: mx.array) -> bool:
    if ours.dtype != theirs.dtype:
        ours, theirs = ours.astype(mx.float32), theirs.astype(mx.float32)
    return bool(mx.array_equal(ours, theirs).item())
