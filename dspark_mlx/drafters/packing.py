"""Quantized drafters: each part of one has its own bits, and every module states them."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

import mlx.nn as nn

from dspark_mlx.config_rules import GROUP_SIZES
from dspark_mlx.errors import CheckpointError, OptionError

BITS = (4, 8)
BACKBONE = "backbone"
# part -> how its modules' names begin; whatever no row claims is backbone
PARTS = {"head": "lm_head", "markov": "markov_head", "embeddings": "embed_tokens"}
NEVER = "confidence_head"  # one row


def part_of(path: str) -> str:
    """The part of a drafter that a module or tensor belongs to."""
    owner = path.partition(".")[0]
    return next((part for part, name in PARTS.items() if owner == name), BACKBONE)


def bits_by_part(bits: int | Mapping[str, int | None] | None) -> dict[str, int]:
    """Part -> bits, from one number for all parts or from a mapping; None leaves a part dense.

    Raises OptionError for an unknown part and for bits that are not 4 or 8.
    """
    every = (BACKBONE, *PARTS)
    chosen = bits if isinstance(bits, Mapping) else dict.fromkeys(every, bits)
    if unknown := sorted(set(chosen) - set(every)):
        raise OptionError(f"a drafter has no part {', '.join(unknown)}; its parts: {list(every)}")
    stated = {part: value for part, value in chosen.items() if value is not None}
    for part, value in stated.items():
        if isinstance(value, bool) or value not in BITS:
            raise OptionError(
                f"a drafter can be quantized to 4 or 8 bits, not {short(value)} ({part})"
            )
    return stated


def quantize_drafter(
    drafter: Any, bits: int | Mapping[str, int | None], group_size: int
) -> dict[str, Any]:
    """Quantize every matrix of the parts in `bits` whose width allows it.

    Returns the config's `quantization` entry, {"group_size": n, "modules": {path: bits}}. The
    confidence head is never quantized: it is one row. Raises OptionError.
    """
    chosen = bits_by_part(bits)
    if group_size not in GROUP_SIZES:
        raise OptionError(f"the group size must be 32, 64 or 128, not {group_size!r}")
    modules: dict[str, int] = {}

    def settings_of(path: str, module: nn.Module) -> dict[str, int] | bool:
        fits = hasattr(module, "to_quantized") and module.weight.shape[-1] % group_size == 0
        if not fits or path.startswith(NEVER) or part_of(path) not in chosen:
            return False
        modules[path] = chosen[part_of(path)]
        return {"group_size": group_size, "bits": modules[path]}

    nn.quantize(drafter, class_predicate=settings_of)
    return {"group_size": group_size, "modules": modules}


def lay_out_packed(drafter: Any, quantization: Mapping[str, Any]) -> None:
    """Give an empty drafter the packed modules that a config's `quantization` states.

    Raises CheckpointError where they do not fit its shape.
    """
    group_size, modules = quantization["group_size"], quantization["modules"]

    unknown = set(modules)

    def settings_of(path: str, module: nn.Module) -> dict[str, int] | bool:
        if path not in modules or not hasattr(module, "to_quantized"):
            return False
        unknown.discard(path)
        return {"group_size": group_size, "bits": modules[path]}

    try:
        nn.quantize(drafter, class_predicate=settings_of)
    except ValueError as error:
        raise CheckpointError(f"the config's quantization does not fit: {error}") from error
    if unknown:
        raise CheckpointError(
            f"the config's quantization names {short(sorted(map(str, unknown)))}, which such a "
            "drafter has no matrix for"
        )
