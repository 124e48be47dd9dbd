"""Verify everything, or a fixed number of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Full:
    """Verify the whole block. Lossless: the length is a constant."""

    needs_confidence: bool = False

    def cap(self, drafts: int) -> int:
        """All of them."""
        return drafts

    def cut(self, confidence: Sequence[float]) -> int:
        """All of them."""
        return len(confidence)


@dataclass(frozen=True)
class Fixed:
    """Draft with the full block, verify at most `length` drafts. Lossless: a constant."""

    length: int
    needs_confidence: bool = False

    def cap(self, drafts: int) -> int:
        """`length`, where the block has so many."""
        return min(self.length, drafts)

    def cut(self, confidence: Sequence[float]) -> int:
        """All that were drawn."""
        return len(confidence)
