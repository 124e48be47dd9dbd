"""Verify everything, or a fixed number of drafts."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Constant, Plan


@dataclass(frozen=True)
class Full(Constant):
    """Verify the whole block. Lossless: the length is a constant."""

    def plan(self, drafts: int, context: int) -> Plan:
        """All of them."""
        return Plan(drafts, drafts, reason="full")


@dataclass(frozen=True)
class Fixed(Constant):
    """Draft with the full block, verify at most `length` drafts. Lossless: a constant."""

    length: int

    def plan(self, drafts: int, context: int) -> Plan:
        """`length`, where the block has so many; no more are drawn."""
        count = min(self.length, drafts)
        return Plan(count, count, reason="fixed", standing_down=self.length == 0)
