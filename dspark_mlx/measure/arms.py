"""The ways of generating that one run compares: drafter, head, cutoff and block size."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn

from dspark_mlx.errors import OptionError
from dspark_mlx.heads.silent import SilentHead
from dspark_mlx.limits import block_slots
from dspark_mlx.options import Options
from dspark_mlx.pair import Pair


@dataclass(frozen=True)
class DrafterChoice:
    """A loaded pair under the name of its drafter; `sha256` is its fingerprint.

    `source` is what it was loaded from: a hub id, a known name or a folder.
    """

    name: str
    sha256: str
    pair: Pair
    source: str = ""


@dataclass(frozen=True)
class Arm:
    """One way of generating. `block_size` None is the drafter's own."""

    drafter: DrafterChoice
    cutoff: str = "full"
    block_size: int | None = None
    head: bool = True

    @property
    def pair(self) -> Pair:
        """The pair to run."""
        return self.drafter.pair if self.head else without_head(self.drafter.pair)

    @property
    def block(self) -> int:
        """Slots of a block."""
        assert self.drafter.pair.drafter is not None
        return self.block_size or self.drafter.pair.drafter.block_size

    @property
    def name(self) -> str:
        """Unique among the arms of one run: drafter, cutoff, block, head."""
        head = "" if self.head else " head off"
        block = "" if self.block_size is None else f" block {self.block_size}"
        return f"{self.drafter.name} {self.cutoff}{block}{head}"

    @property
    def identity(self) -> dict[str, Any]:
        """What of this arm determines its results, JSON-ready."""
        return {
            "drafter": self.drafter.sha256,
            "cutoff": self.cutoff,
            "block": self.block,
            "head": self.head,
        }


def every_arm(
    drafters: Sequence[DrafterChoice],
    cutoffs: Sequence[str],
    block_sizes: Sequence[int | None],
    head_off: bool = False,
) -> list[Arm]:
    """Each drafter with each cutoff and block size, checked; `head_off` adds the ablation."""
    arms = []
    for drafter in drafters:
        for block in block_sizes:
            arms += [Arm(drafter, cutoff, block) for cutoff in cutoffs]
            if head_off:
                arms += [Arm(drafter, cutoff, block, head=False) for cutoff in cutoffs]
    for arm in arms:
        options = Options(cutoff=arm.cutoff, block_size=arm.block_size)
        block_slots(arm.pair, options, options.policy)
    names = [arm.name for arm in arms]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise OptionError(f"asked for twice: {', '.join(twice)}")
    return arms


def without_head(pair: Pair) -> Pair:
    """The same pair with the drafter's sequential head switched off; the weights are shared."""
    head = pair.drafter.get("markov_head") if isinstance(pair.drafter, nn.Module) else None
    if head is None:
        raise OptionError("this drafter has no sequential head that could be switched off")
    drafter: Any = copy.copy(pair.drafter)
    drafter.markov_head = SilentHead(head, drafter.config.head_rows)
    return dataclasses.replace(pair, drafter=drafter)


def split_list(value: str, what: str, convert: Callable[[str], Any] = str) -> list[Any]:
    """The parts of a comma-separated option; OptionError names a part that does not fit."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts:
        raise OptionError(f"{what} is empty; give values with commas between them")
    try:
        return [convert(part) for part in parts]
    except ValueError as error:
        raise OptionError(f"{what} {value!r}: {error}") from error
