"""The static threshold rule of DeepSpec (method section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """Stop before the first draft whose confidence lies below `value`.

    Lossless at any temperature: the confidence of draft k is computed from drafts before k
    only, so whether k is verified does not depend on k itself.
    """

    value: float

    @property
    def needs_confidence(self) -> bool:
        """A threshold of zero cuts nothing."""
        return self.value > 0.0

    def cap(self, drafts: int) -> int:
        """Unknown before drafting: all of them."""
        return drafts

    def cut(self, confidence: Sequence[float]) -> int:
        """Length of the leading run of confidences that are not below the threshold."""
        if self.value <= 0.0:
            return len(confidence)
        return next((k for k, c in enumerate(confidence) if c < self.value), len(confidence))
