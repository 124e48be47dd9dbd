"""A view of a checkpoint's tensors under our names: renamed, joined, split, decoded when read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import mlx.core as mx

from dspark_mlx.errors import CheckpointError

from .tensors import TensorInfo, TensorSource

INTEGERS = ("I32", "I64", "U32")


def _as_it_is(array: mx.array) -> mx.array:
    return array


@dataclass(frozen=True)
class Made:
    """How one of our tensors comes about: `make` of the stored ones named in `sources`."""

    sources: tuple[str, ...]
    info: TensorInfo
    make: Callable[..., mx.array] = _as_it_is


class MappedTensors:
    """A TensorSource over another one; see `Made`."""

    def __init__(self, inner: TensorSource, made: Mapping[str, Made]) -> None:
        self._inner, self._made = inner, dict(made)
        self.infos: Mapping[str, TensorInfo] = {name: m.info for name, m in self._made.items()}

    @property
    def path(self) -> Path:
        """The file or folder that was opened."""
        return self._inner.path

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that hold weights."""
        return self._inner.files

    @property
    def stored(self) -> frozenset[str]:
        """Names of all tensors in the files."""
        inner = self._inner
        return inner.stored if isinstance(inner, MappedTensors) else frozenset(inner.infos)

    @property
    def origins(self) -> dict[str, tuple[str, ...]]:
        """Our name -> the stored tensors that it is made of."""
        inner = self._inner
        before = inner.origins if isinstance(inner, MappedTensors) else {}
        return {
            name: tuple(
                stored for source in made.sources for stored in before.get(source, (source,))
            )
            for name, made in self._made.items()
        }

    def read(self, name: str) -> mx.array:
        """Make one tensor, shape and dtype as in `infos`; CheckpointError for an unknown name."""
        if name not in self._made:
            return self._inner.read(name)  # which knows how to complain
        made = self._made[name]
        return made.make(*(self._inner.read(source) for source in made.sources))

    def close(self) -> None:
        """Let go of the files."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unchanged(tensors: TensorSource) -> dict[str, Made]:
    """Every tensor under its own name: where every view begins."""
    return {name: Made((name,), info) for name, info in tensors.infos.items()}


def without_prefix(made: Mapping[str, Made], prefix: str, where: str) -> dict[str, Made]:
    """Names without `prefix`; CheckpointError where one then stands for two tensors."""
    renamed: dict[str, Made] = {}
    for name, entry in made.items():
        ours = name.removeprefix(prefix)
        if ours in renamed:
            raise CheckpointError(f"{where}: holds {ours} both with and without '{prefix}'")
        renamed[ours] = entry
    return renamed


def with_draft_ids(made: Mapping[str, Made], where: str) -> dict[str, Made]:
    """`d2t` (offsets, target = draft + d2t[draft]) and `t2d` become absolute `draft_ids`."""
    rest = {name: entry for name, entry in made.items() if name not in ("d2t", "t2d")}
    if "d2t" not in made:
        if "t2d" in made:
            raise CheckpointError(f"{where}: holds t2d without the d2t that it mirrors")
        return rest
    info = made["d2t"].info
    if len(info.shape) != 1 or info.dtype not in INTEGERS:
        raise CheckpointError(
            f"{where}: d2t is {info.dtype} {list(info.shape)}, expected a list of integers"
        )
    sources = tuple(name for name in ("d2t", "t2d") if name in made)
    return rest | {
        "draft_ids": Made(sources, replace(info, dtype="I32"), partial(_absolute, where))
    }


def _absolute(where: str, offsets: mx.array, marks: mx.array | None = None) -> mx.array:
    ids: list[Any] = [draft + offset for draft, offset in enumerate(_ints(offsets))]
    if bad := [i for i in ids if not 0 <= i < 2**31]:
        raise CheckpointError(f"{where}: d2t leads to token {bad[0]}, which cannot be")
    if marks is not None:
        marked = [token for token, mark in enumerate(_ints(marks)) if mark]
        if marked != sorted(ids):
            raise CheckpointError(
                f"{where}: d2t and t2d do not name the same tokens ({len(ids)} and {len(marked)})"
            )
    return mx.array(ids, dtype=mx.int32)


def _ints(array: mx.array) -> list[int]:
    values: Any = array.tolist()
    return values


def split_rows(
    made: Mapping[str, Made], name: str, parts: Mapping[str, int], where: str
) -> dict[str, Made]:
    """Tensor `name` [sum of rows, ...] cut into `parts` (our name -> rows), in their order."""
    entry, shape = made[name], made[name].info.shape
    if not shape or shape[0] != sum(parts.values()):
        raise CheckpointError(
            f"{where}: {name} has shape {list(shape)}, expected {sum(parts.values())} rows "
            f"({' + '.join(map(str, parts.values()))})"
        )
    cut, start = {k: v for k, v in made.items() if k != name}, 0
    for part, rows in parts.items():
        info = replace(entry.info, shape=(rows, *shape[1:]))
        if part in cut:
            raise CheckpointError(f"{where}: holds both {name} and {part}")
        cut[part] = Made(entry.sources, info, partial(_rows, entry.make, start, start + rows))
        start += rows
    return cut


def _rows(make: Callable[..., mx.array], start: int, stop: int, *arrays: mx.array) -> mx.array:
    return make(*arrays)[start:stop]
