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


class Memory(Protocol):
    """What a drafter remembers of committed positions: see `context.Context`."""

    window: int | None

    @property
    def length(self) -> int:
        """Committed positions covered."""

    def cut(self, length: int) -> None:
        """Cover only the first `length` positions; `extend` comes before the next proposal."""

    def arrays(self) -> list[mx.array]:
        """Everything to evaluate to bring the context up to date on the device."""

    def copy(self) -> Memory:
        """An independent copy."""

    def state(self) -> tuple[dict[str, mx.array], dict[str, int]]:
        """Named arrays and numbers to store."""

    def restore(self, arrays: dict[str, mx.array], numbers: dict[str, int]) -> None:
        """Take on what `state` gave."""


class Drafter(Protocol):
    """A drafter proposes blocks from the target's hidden states; it never judges them.

    A call that breaks off leaves the context as it was before the call.
    """

    config: DrafterConfig

    @property
    def head_ids(self) -> mx.array | None:
        """The target token of every row of the head, [head rows]; None where each is its own."""

    @property
    def block_size(self) -> int:
        """Slots of a full block."""

    @property
    def ends_at_stop(self) -> bool:
        """Whether drafts after a drafted stop token do not count as proposed."""

    def start(self, window: int | None = None) -> Any:
        """An empty context (a `Memory`) that looks at the newest `window` positions (None: all)."""

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
