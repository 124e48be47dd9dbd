"""The accept rule: pure functions from proposal and target rows to a verdict (all lazy).

Speculative sampling keeps the target's distribution: accept with min(1, p/q), and draw the
first rejected position from the positive part of p - q (method section 6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

TINY = 1e-8  # below this, a draft probability or a residual mass counts as zero


class Verdict(NamedTuple):
    """`accepted` [] int: length of the accepted prefix; `final` [1] int: the token after it."""

    accepted: mx.array
    final: mx.array


def verify_greedy(drafts: mx.array, target_logits: mx.array) -> Verdict:
    """Accept drafts [l] while each is the argmax of its row of `target_logits` [l+1, V]."""
    best = mx.argmax(target_logits, axis=-1)  # [l+1]
    accepted = leading(drafts == best[: drafts.shape[0]])
    return Verdict(accepted, best[accepted].reshape(1))


def verify_match(drafts: mx.array, sampled: mx.array) -> Verdict:
    """Accept drafts [l] while each is what the target's sampler drew at its row, `sampled` [l+1].

    The committed tokens are the sampler's own draws, so their distribution is too.
    """
    accepted = leading(drafts == sampled[: drafts.shape[0]])
    return Verdict(accepted, sampled[accepted].reshape(1))


def verify_sampled(
    drafts: mx.array,
    draft_probs: mx.array | None,
    target_probs: mx.array,
    uniforms: mx.array,
    draw: Callable[[mx.array], mx.array],
) -> Verdict:
    """Speculative sampling of drafts [l] drawn from `draft_probs` [l, V] (None when l = 0).

    `target_probs` is [l+1, V]; `uniforms` [l] in [0, 1); `draw` takes [1, V] to a token [1].
    """
    count = drafts.shape[0]
    if draft_probs is None or count == 0:
        return Verdict(mx.array(0), draw(target_probs[:1]))
    column = drafts[:, None]
    p = mx.take_along_axis(target_probs[:count], column, axis=-1).squeeze(-1)
    q = mx.take_along_axis(draft_probs, column, axis=-1).squeeze(-1)
    accepted = leading(uniforms < mx.minimum(1.0, p / mx.maximum(q, TINY)))
    row = target_probs[accepted]
    rejected_q = draft_probs[mx.minimum(accepted, count - 1)]
    after_rejection = residual(row, rejected_q)
    final = mx.where(accepted < count, after_rejection, row)
    return Verdict(accepted, draw(final[None]))


def residual(p: mx.array, q: mx.array) -> mx.array:
    """norm(max(p - q, 0)) over the last axis; `p` itself where nothing is left."""
    positive = mx.maximum(p - q, 0.0)
    mass = positive.sum(axis=-1, keepdims=True)
    return mx.where(mass > TINY, positive / mx.maximum(mass, TINY), p)


def leading(flags: mx.array) -> mx.array:
    """Length of the run of true values at the start of `flags` [n], a scalar int."""
    return mx.cumprod(flags.astype(mx.int32)).sum() if flags.shape[0] else mx.array(0)
