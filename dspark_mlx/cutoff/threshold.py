"""The static threshold rule of DeepSpec (method section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import Constant, Plan


@dataclass(frozen=True)
class Threshold(Constant):
    """Stop before the first draft whose confidence, as the drafter gives it, is below `value`.

    Lossless at any temperature: the confidence of draft k is computed from drafts before k
    only, so whether k is verified does not depend on k itself.
    """

    value: float

    @property
    def needs_confidence(self) -> bool:  # type: ignore[override]
        """A threshold of zero cuts nothing."""
        return self.value > 0.0

    def plan(self, drafts: int, context: int) -> Plan:
        """Unknown before drafting: all of them."""
        return Plan(drafts, drafts, look=self.needs_confidence, reason="threshold")

    def cut(self, confidence: Sequence[float]) -> int:
        """Length of the leading run of confidences that are not below the threshold."""
        return next((k for k, c in enumerate(confidence) if c < self.value), len(confidence))
