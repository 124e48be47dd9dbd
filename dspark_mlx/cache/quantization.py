"""KV caches that mlx-lm quantizes on the way: where that happens, and what it closes off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlx_lm.generate import maybe_quantize_kv_cache

from dspark_mlx.errors import OptionError


@dataclass(frozen=True)
class KVQuantization:
    """mlx-lm's settings: `bits` per value in groups, from `start` cached positions on."""

    bits: int
    group_size: int = 64
    start: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("kv_bits", self.bits, 1),
            ("kv_group_size", self.group_size, 1),
            ("quantized_kv_start", self.start, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name} must be an integer of {least} or more, not {value!r}")

    def convert(self, entries: list[Any]) -> bool:
        """Quantize the caches that have come to `start`, in place; True where any was."""
        before = [type(entry) for entry in entries]
        maybe_quantize_kv_cache(entries, self.start, self.group_size, self.bits)
        return before != [type(entry) for entry in entries]
