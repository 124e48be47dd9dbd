"""What lies on disk: packagings of drafters, recognised by data and described as data."""

from __future__ import annotations

from .source import DrafterSource, open_drafter

__all__ = ["DrafterSource", "open_drafter"]
