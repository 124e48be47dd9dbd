"""One step of a target, built but never computed: does everything fit, and what do caches hold?

Shapes are known as soon as a graph is built, so this reads no weight and costs milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from dspark_mlx.cache import KVQuantization, TargetCache
from dspark_mlx.errors import UnsupportedError

if TYPE_CHECKING:
    from .base import Target

# what a model's code raises over input that it was not written for
FOREIGN = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError,
    RuntimeError,
)  # fmt: skip


def probe(target: Target) -> None:
    """Raise UnsupportedError where the target cannot be tapped, run or rolled back."""
    cache = TargetCache(target.model, name=target.name)
    width, vocab = target.hidden_size, target.vocab_size
    for rows in (1, 2):  # alone and as a block: models branch on it
        try:
            logits, taps = target.tapped(range(-1, target.depth))(mx.zeros(rows, mx.int32), cache)
            cache.keep(cache.length - rows + 1)
        except FOREIGN as error:
            raise UnsupportedError(_cannot(target, _reason(error))) from error
        for layer, tap in enumerate(taps, -1):
            if tap.shape != (rows, width):
                found = f"layer {layer} gives {tap.shape} for {rows} rows of width {width}"
                raise UnsupportedError(_cannot(target, found))
        if logits.shape != (rows, vocab):
            found = f"its head gives {logits.shape} for {rows} rows and a vocabulary of {vocab}"
            raise UnsupportedError(_cannot(target, found))


def probe_quantized(target: Target, quantization: KVQuantization) -> None:
    """Raise UnsupportedError where the model's KV caches cannot be quantized like this."""
    now = KVQuantization(quantization.bits, quantization.group_size, 0)
    cache = TargetCache(target.model, now, name=target.name)
    before = [type(entry) for entry in cache.entries]
    what = (
        f"{target.name}: KV caches cannot be quantized to {now.bits} bits "
        f"in groups of {now.group_size}: "
    )
    try:
        for _ in range(2):
            target.tapped()(mx.zeros(2, mx.int32), cache)
    except FOREIGN as error:
        raise UnsupportedError(what + _reason(error)) from error
    if before == [type(entry) for entry in cache.entries]:
        kinds = ", ".join(sorted({kind.__name__ for kind in before}))
        raise UnsupportedError(what + f"mlx-lm has no quantized form of {kinds}")


def _cannot(target: Target, why: str) -> str:
    return f"{target.name} ({target.config.get('model_type')}) cannot be a target: {why}"


def _reason(error: Any) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
