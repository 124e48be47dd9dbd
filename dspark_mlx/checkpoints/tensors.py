"""The tensors of a checkpoint folder, whatever files they lie in: see `open_tensors`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import mlx.core as mx

from dspark_mlx.checkpoints.gguf_file import GgufFile
from dspark_mlx.checkpoints.safetensors_file import (
    LFS_MARK,
    SafetensorsFile,
    TensorInfo,
    fail,
    shown,
)
from dspark_mlx.checkpoints.torch_zip import TorchZipFile
from dspark_mlx.errors import CheckpointError

__all__ = ["TensorInfo", "TensorSource", "open_tensors"]

INDEX = ".index.json"
MAX_INDEX = 100_000_000  # bytes
TORCH_SUFFIXES = (".bin", ".pt", ".pth")
# What a folder may hold, best first. A pattern may match one file only.
PREFERENCE = (
    ("model.safetensors",),
    ("model.safetensors.index.json",),
    ("*.safetensors",),
    ("pytorch_model.bin",),
    ("pytorch_model.bin.index.json",),
    tuple(f"*{suffix}" for suffix in TORCH_SUFFIXES),
    ("*.gguf",),
)
# Files that trainers leave beside the weights.
NOT_WEIGHTS = {"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt"}


File = SafetensorsFile | TorchZipFile | GgufFile


class TensorSource(Protocol):
    """Named tensors on disk, their dtypes and shapes known before any weight is read."""

    @property
    def path(self) -> Path:
        """The file or folder that was opened."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that hold weights, sorted by name."""

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Dtype and shape of every tensor."""

    def read(self, name: str) -> mx.array:
        """Read one tensor, shape and dtype as in `infos`; CheckpointError for an unknown name."""

    def close(self) -> None:
        """Let go of the files; arrays already read stay valid."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_tensors(folder: Path) -> TensorSource:
    """Open the weights in `folder`, or the weight file or index that `folder` itself is.

    Files are chosen as in `PREFERENCE`. CheckpointError if there is none, or more than one
    that could be meant, or if a file is damaged; headers are checked here, in full.
    """
    if folder.is_dir():
        try:
            found = _choose(folder)
        except OSError as error:
            raise CheckpointError(f"{folder}: cannot be listed ({error})") from error
        return _Shards(folder, found) if found.name.endswith(INDEX) else _open_file(found)
    if not folder.exists():
        fail(folder, "no such file or folder", "check the path")
    return _Shards(folder, folder) if folder.name.endswith(INDEX) else _open_file(folder)


def _choose(folder: Path) -> Path:
    for patterns in PREFERENCE:
        found = sorted({path for pattern in patterns for path in folder.glob(pattern)})
        found = [path for path in found if path.name not in NOT_WEIGHTS and not path.is_dir()]
        if len(found) == 1:
            return found[0]
        if found:
            fail(folder, f"several weight files and no index: {_names(found)}", "name one of them")
    fail(
        folder,
        f"no weights in this folder, which holds {_names(folder.iterdir()) or 'nothing'}",
        "expected model.safetensors, pytorch_model.bin, or one of them as shards with an index",
    )


def _names(paths: Iterable[Path]) -> str:
    names = sorted(path.name for path in paths)
    return ", ".join(shown(name) for name in names[:12]) + (", ..." if len(names) > 12 else "")


def _open_file(path: Path) -> File:
    if path.suffix == ".safetensors":
        return SafetensorsFile(path)
    if path.suffix in TORCH_SUFFIXES:
        return TorchZipFile(path)
    if path.suffix == ".gguf":
        return GgufFile(path)
    known = ", ".join((".safetensors", *TORCH_SUFFIXES, ".gguf", INDEX))
    fail(path, f"a file that ends in {path.suffix or 'nothing'!r}", f"expected one of {known}")


class _Shards:
    """Several weight files under one index; every tensor is in exactly one of them."""

    def __init__(self, path: Path, index: Path) -> None:
        self.path = path
        places = _read_index(index)
        self.files = tuple(index.parent / name for name in sorted(set(places.values())))
        self._sources: list[File] = []
        self._owners: dict[str, File] = {}
        try:
            for file in self.files:
                self._add(index, file)
            self._check(index, places)
        except BaseException:
            self.close()
            raise
        self.infos: Mapping[str, TensorInfo] = {n: s.infos[n] for n, s in self._owners.items()}

    def read(self, name: str) -> mx.array:
        """Read one tensor from the shard that holds it."""
        if name not in self._owners:
            fail(self.path, f"has no tensor '{shown(name)}'", f"it holds {len(self.infos)} others")
        return self._owners[name].read(name)

    def close(self) -> None:
        """Close every shard."""
        for source in self._sources:
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, index: Path, file: Path) -> None:
        if not file.is_file():
            fail(index, f"names the shard {shown(file.name)}, which is missing", "download it too")
        source = _open_file(file)
        self._sources.append(source)
        for name in source.infos:
            if name in self._owners:
                both = f"{self._owners[name].path.name} and {file.name}"
                fail(index, f"tensor '{shown(name)}' is in two shards, {both}")
            self._owners[name] = source

    def _check(self, index: Path, places: Mapping[str, str]) -> None:
        for name, file in places.items():
            owner = self._owners.get(name)
            if owner is None or owner.path.name != file:
                fail(
                    index, f"places tensor '{shown(name)}' in {shown(file)}, which does not hold it"
                )


def _read_index(index: Path) -> dict[str, str]:
    """Tensor name -> file name of its shard, a plain name in the folder of the index."""
    try:
        if index.stat().st_size > MAX_INDEX:
            fail(index, "too large for an index")
        raw = index.read_bytes()
        if raw.startswith(LFS_MARK):
            fail(index, "this is a git-lfs pointer", "fetch the files with `git lfs pull`")
        content: Any = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{index}: no readable JSON index ({shown(str(error))})") from error
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places:
        fail(index, "has no `weight_map` object with entries")
    for name, file in places.items():
        if not isinstance(file, str) or not _is_plain(file):
            fail(index, f"places '{shown(name)}' in '{shown(file)}', not a file of this folder")
    return places


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")
