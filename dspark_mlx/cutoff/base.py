"""How many drafts of a block are worth verifying: the border between loop and policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Cutoff(Protocol):
    """A policy. At temperature > 0 the length must not depend on a token that it admits.

    That is: whether draft k is verified may use anything known before draft k was drawn,
    and nothing else (method section 8.3). Each policy argues this in its docstring.
    """

    @property
    def needs_confidence(self) -> bool:
        """Whether `cut` reads confidences; costs one more host synchronisation per round."""

    def cap(self, drafts: int) -> int:
        """Before drafting: verify at most this many (0..drafts); only so many are drawn."""

    def cut(self, confidence: Sequence[float]) -> int:
        """After drafting: how many to verify, from one confidence (0..1) per drawn draft."""
