"""The models of a measurement: one target, and every drafter that it is run with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from dspark_mlx import hub
from dspark_mlx.fingerprint import fingerprint
from dspark_mlx.loading import load, with_drafter
from dspark_mlx.pair import Pair
from dspark_mlx.registry import MODELS, Progress, entry_of

from .arms import DrafterChoice


@dataclass(frozen=True)
class Models:
    """`plain` is the target without a drafter; `precision` what it computes in, in words."""

    name: str
    sha256: str
    precision: str
    plain: Pair
    drafters: tuple[DrafterChoice, ...]

    @property
    def identity(self) -> str:
        """What of the target determines results."""
        return f"{self.sha256} {self.precision}"

    def to_dict(self) -> dict[str, Any]:
        """The target, JSON-ready."""
        return {"name": self.name, "sha256": self.sha256, "precision": self.precision}


def open_models(
    target: str,
    drafters: Sequence[str] = (),
    bits: Sequence[int | str | None] = (None,),
    dtype: str | None = None,
    progress: Progress | None = None,
) -> Models:
    """Load a target and each drafter in each of `bits`; without drafters, the target's own.

    Raises what `load` raises.
    """
    plain = load(target, drafter=False, dtype=dtype, progress=progress)
    asked: Sequence[str | None] = drafters or (None,)
    chosen = tuple(_drafter(plain, target, name, b, dtype) for name in asked for b in bits)
    if len({choice.name for choice in chosen}) < len(chosen):  # folders of one name
        chosen = tuple(replace(choice, name=choice.source) for choice in chosen)
    on_cpu = mx.default_device() == mx.cpu
    precision = dtype or ("float32" if on_cpu else "precision as stored")
    content = fingerprint(plain.target.model, plain.target.config)
    return Models(target, content, precision, plain, chosen)


def _drafter(
    plain: Pair, target: str, asked: str | None, bits: int | str | None, dtype: str | None
) -> DrafterChoice:
    where = hub.default_drafter(target) if asked is None else hub.drafter_folder(asked)
    source, name = _named(target, asked)
    suffix = "" if bits is None else f" {bits}" if bits == "keep" else f" {bits}-bit"
    pair = with_drafter(plain, where, quantize=bits, dtype=dtype)
    drafter: Any = pair.drafter
    content = fingerprint(drafter, drafter.config.to_dict())
    return DrafterChoice(name + suffix, content, pair, source)


def _named(target: str, asked: str | None) -> tuple[str, str]:
    """What a drafter comes from, and its short name."""
    entry = entry_of(target) if asked is None else MODELS.get(asked)
    if entry is not None:
        if entry.built_in_drafter is not None:
            return entry.built_in_drafter.name, entry.built_in_drafter.name
        return entry.drafter, entry.drafter.rsplit("/", 1)[-1]
    source = str(asked)
    return source, Path(source).name or source
