"""Copies of the target's embedding and head inside a drafter: found by comparing values."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.targets.base import Target


def find_copies(weights: Mapping[str, mx.array], target: Target, share: bool) -> dict[str, str]:
    """Tensors to leave out because the target holds them, with the reason for each.

    Equal values are always shared. With `share` differing or quantized ones are too: the
    drafter then drafts with the target's tables, and may accept less.
    """
    theirs = {
        "embed_tokens.weight": target.family.embedding(target.model),
        "lm_head.weight": target.family.head(target.model),
    }
    dropped = {}
    for name, module in theirs.items():
        if name not in weights:
            continue
        if _equal(weights[name], module):
            dropped[name] = "equal to the target's"
        elif share:
            dropped[name] = "the target's is used, though it differs"
    return dropped


def _equal(ours: mx.array, module: nn.Module) -> bool:
    if isinstance(module, nn.QuantizedEmbedding | nn.QuantizedLinear):
        return False
    theirs = module.weight
    # a copy may be stored in a wider dtype than the original, never in other values
    return ours.shape == theirs.shape and bool(
        mx.array_equal(ours.astype(mx.float32), theirs.astype(mx.float32)).item()
    )
