"""The border between the decode loop and a kind of drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from dspark_mlx.config import DrafterConfig

# logits row [1, V] -> the drawn token [1] and the distribution it was drawn from [1, V];
# the distribution is None for greedy drafting
Pick = Callable[[mx.array], tuple[mx.array, mx.array | None]]


@dataclass(frozen=True)
class Proposal:
    """One block's drafts, still lazy: n = number of drafts asked for.

    tokens: [n] int32. probs: [n, V] float32, what each token was drawn from (None if greedy).
    confidence: [n] float32 logits (None when the drafter has no confidence head).
    """

    tokens: mx.array
    probs: mx.array | None = None
    confidence: mx.array | None = None

    @classmethod
    def of(
        cls,
        tokens: list[mx.array],
        probs: list[mx.array | None],
        confidence: mx.array | None = None,
    ) -> Proposal:
        """Join what `Pick` gave, draft by draft."""
        drawn = [q for q in probs if q is not None]
        return cls(mx.concatenate(tokens), mx.concatenate(drawn) if drawn else None, confidence)

    def first(self, count: int) -> Proposal:
        """The proposal cut to its first `count` drafts."""
        probs = None if self.probs is None else self.probs[:count]
        return Proposal(self.tokens[:count], probs, self.confidence)


class Drafter(Protocol):
    """A drafter proposes blocks from the target's hidden states; it never judges them.

    The context (opaque to the loop) holds what the drafter remembers of committed tokens.
    """

    config: DrafterConfig

    @property
    def block_size(self) -> int:
        """Slots of a full block."""

    @property
    def ends_at_stop(self) -> bool:
        """Whether drafts after a drafted stop token do not count as proposed."""

    def start(self) -> Any:
        """An empty context."""

    def extend(self, context: Any, features: list[mx.array], following: mx.array) -> None:
        """Add committed positions: one [n, d] array per tapped layer, in layer order.

        `following` [n] holds the committed token after each position. Lazy.
        """

    def propose(self, context: Any, anchor: int, slots: int, count: int, pick: Pick) -> Proposal:
        """Draft with a block of `slots` slots; the first `count` (<= drafts of such a block).

        Context length is unchanged by this call. Lazy.
        """

    def drafts_of(self, slots: int) -> int:
        """How many drafts a block of `slots` slots gives."""

    def forced_rows(self, context: Any, tokens: Sequence[int], count: int) -> mx.array:
        """Hidden rows [count, d] of a full block whose drafts are given: anchor, then drafts.

        What `propose` would compute if `pick` gave those tokens, head apart. Lazy.
        """

    def forced_logits(self, hidden: mx.array, previous: mx.array) -> mx.array:
        """Logits [a, n, draftable] of `forced_rows` of a blocks [a, n, d].

        `previous` [a, n] holds the token before each draft. Lazy.
        """

    def over_drafted(self, probs: mx.array) -> mx.array:
        """The columns of a target's distributions [..., V] that `forced_logits` has."""

    def context_length(self, context: Any) -> int:
        """Number of committed positions that the context covers."""

    def context_arrays(self, context: Any) -> list[mx.array]:
        """Everything to evaluate to bring the context up to date on the device."""
