"""One GGUF file (version 3, little-endian), checked in full and read from its raw bytes.

`mx.load` also reads GGUF, but gives bfloat16 tensors as float16.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dspark_mlx.checkpoints.safetensors_file import (
    MAX_DIM,
    MappedFile,
    TensorInfo,
    fail,
    map_file,
    shown,
)
from dspark_mlx.errors import UnsupportedError

MAGIC, VERSION = b"GGUF", 3
MAX_ENTRIES = 100_000  # of metadata, and of tensors
MAX_TEXT = 1_000_000  # bytes of one string
MAX_RANK = 4
MAX_ALIGNMENT = 2**20

# number of a tensor type -> its name; those that are plain arrays are spelled as in safetensors
TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
PLAIN = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")

# number of a metadata type -> how struct spells it
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
TEXT, ARRAY = 8, 9


class GgufFile(MappedFile):
    """Tensors and metadata of one GGUF file; metadata keys nest at their dots.

    A list of strings (a vocabulary) comes as {"strings": count}. Raises CheckpointError for a
    file that is damaged, UnsupportedError for one with quantized tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self._data = map_file(path)
        try:
            at = _Cursor(path, self._data)
            tensors = at.header()
            self.metadata: dict[str, Any] = _nest(path, at.metadata())
            self._alignment = self._read_alignment()
            infos = at.tensor_infos(tensors)
            self._start = -(-at.place // self._alignment) * self._alignment
            self.infos = {n: info for n, (info, _) in infos.items()}
            self._begins = {name: begin for name, (_, begin) in infos.items()}
            self._check_layout()
        except BaseException:
            self.close()
            raise

    def _read_alignment(self) -> int:
        general = self.metadata.get("general")
        value = general.get("alignment", 32) if isinstance(general, dict) else 32
        if type(value) is not int or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
            fail(self.path, f"general.alignment is {shown(str(value))}, expected a power of two")
        return value

    def _check_layout(self) -> None:
        """Tensors must lie inside the file, aligned, none over another."""
        end = 0
        for name in sorted(self.infos, key=lambda n: self._begins[n]):
            begin, size = self._begins[name], self.infos[name].nbytes
            if begin % self._alignment or begin < end:
                fail(self.path, f"tensor '{shown(name)}' at byte {begin} overlaps or is unaligned")
            end = begin + size
        if self._start + end > len(self._data):
            expected, found = self._start + end, len(self._data)
            fail(self.path, f"the file is truncated: expected {expected} bytes, found {found}")


class _Cursor:
    """Reads a header from front to back, never past the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self._data, self.place = path, data, 0

    def header(self) -> int:
        """Check magic and version; the number of tensors, with the cursor before the metadata."""
        if self._take(4) != MAGIC:
            fail(self.path, "not a GGUF file")
        version = self._number("I")
        if version != VERSION:
            big = version == int.from_bytes(VERSION.to_bytes(4, "little"), "big")
            what = "big-endian GGUF" if big else f"GGUF version {version}"
            fail(self.path, f"{what}, expected version {VERSION}, little-endian")
        tensors, self._entries = self._count(), self._count()
        return tensors

    def metadata(self) -> dict[str, Any]:
        """All keys and values, flat."""
        found: dict[str, Any] = {}
        for _ in range(self._entries):
            key = self._text()
            if key in found:
                fail(self.path, f"the metadata key '{shown(key)}' is there twice")
            found[key] = self._value(self._number("I"))
        return found

    def tensor_infos(self, count: int) -> dict[str, tuple[TensorInfo, int]]:
        """Name -> dtype and shape (rows first, as everywhere else), and where its data begins."""
        found: dict[str, tuple[TensorInfo, int]] = {}
        for _ in range(count):
            name, rank = self._text(), self._number("I")
            if name in found or rank > MAX_RANK:
                fail(self.path, f"tensor '{shown(name)}' is there twice, or has {rank} dimensions")
            shape = tuple(self._number("Q") for _ in range(rank))[::-1]
            kind, begin = self._number("I"), self._number("Q")
            if any(size > MAX_DIM for size in shape):
                fail(self.path, f"tensor '{shown(name)}' has an impossible shape {list(shape)}")
            found[name] = (TensorInfo(self._dtype(name, kind), shape), begin)
        return found

    def _dtype(self, name: str, kind: int) -> str:
        if kind not in TYPES:
            fail(self.path, f"tensor '{shown(name)}' is of the unknown type {kind}")
        if TYPES[kind] not in PLAIN:
            raise UnsupportedError(
                f"{self.path}: tensor '{shown(name)}' is quantized ({TYPES[kind]}); only F32, F16 "
                "and BF16 files are read, and `-q` quantizes when converting"
            )
        return TYPES[kind]

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return _tidy(kind, self._number(SCALARS[kind]))
        if kind == TEXT:
            return self._text()
        if kind == ARRAY:
            return self._array()
        fail(self.path, f"the metadata has a value of the unknown type {kind}")

    def _array(self) -> Any:
        kind, count = self._number("I"), self._number("Q")
        if kind == TEXT:
            if count > len(self._data):
                fail(self.path, "the metadata has a list longer than the file")
            for _ in range(count):
                self._skip(self._number("Q"))
            return {"strings": count}
        if kind not in SCALARS:
            fail(self.path, f"the metadata has a list of the unknown type {kind}")
        size = struct.calcsize(f"<{SCALARS[kind]}")
        if count > (len(self._data) - self.place) // size:
            fail(self.path, "the metadata has a list longer than the file")
        raw = self._take(count * size)
        return [_tidy(kind, value) for (value,) in struct.iter_unpack(f"<{SCALARS[kind]}", raw)]

    def _text(self) -> str:
        length = self._number("Q")
        if length > MAX_TEXT:
            fail(self.path, f"the header claims a text of {length} bytes")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            fail(self.path, f"the header has a text that is not UTF-8 ({shown(str(error))})")

    def _count(self) -> int:
        if (value := self._number("Q")) > MAX_ENTRIES:
            fail(self.path, f"the header claims {value} entries, more than {MAX_ENTRIES}")
        return value

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]

    def _skip(self, size: int) -> None:
        if size > len(self._data) - self.place:
            fail(self.path, f"the file is truncated in its header, at byte {self.place}")
        self.place += size

    def _take(self, size: int) -> bytes:
        start = self.place
        self._skip(size)
        return self._data[start : self.place]


def _tidy(kind: int, value: Any) -> Any:
    # a float32 in the shortest decimals that mean it, so that 1e-6 reads as 1e-6
    return float(str(np.float32(value))) if SCALARS[kind] == "f" else value


def _nest(path: Path, flat: Mapping[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        inner = root
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                fail(path, f"the metadata key '{shown(key)}' lies under a plain value")
        if last in inner:
            fail(path, f"the metadata key '{shown(key)}' is also the start of others")
        inner[last] = value
    return root
