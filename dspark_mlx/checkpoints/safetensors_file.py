"""One safetensors file: its header checked in full, its tensors read one at a time.

Also home of what every weight file shares: `TensorInfo`, mapping a file, bytes to array.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import mlx.core as mx
import numpy as np

from dspark_mlx.errors import CheckpointError

MAX_HEADER = 100_000_000  # bytes; the limit of the format's own implementation
MAX_RANK = 32
MAX_DIM = 2**31 - 1  # mlx keeps dimensions as int32
LFS_MARK = b"version https://git-lfs"

# dtype -> (bytes per element, mlx dtype). mlx has no float8: those come as their raw bytes.
DTYPES: dict[str, tuple[int, mx.Dtype]] = {
    "BOOL": (1, mx.bool_),
    "U8": (1, mx.uint8),
    "I8": (1, mx.int8),
    "F8_E4M3": (1, mx.uint8),
    "F8_E5M2": (1, mx.uint8),
    "F8_E8M0": (1, mx.uint8),
    "U16": (2, mx.uint16),
    "I16": (2, mx.int16),
    "F16": (2, mx.float16),
    "BF16": (2, mx.bfloat16),
    "U32": (4, mx.uint32),
    "I32": (4, mx.int32),
    "F32": (4, mx.float32),
    "U64": (8, mx.uint64),
    "I64": (8, mx.int64),
    "F64": (8, mx.float64),
    "C64": (8, mx.complex64),
}
_CARRIERS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a tensor without reading it; `dtype` in safetensors spelling ("BF16")."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the values, packed without gaps."""
        return math.prod(self.shape) * DTYPES[self.dtype][0]


def fail(path: Path, found: str, remedy: str = "download or export the file again") -> NoReturn:
    """Raise CheckpointError as `path: found; remedy`."""
    raise CheckpointError(f"{path}: {found}; {remedy}")


def shown(text: object) -> str:
    """Text from a file, made safe for one line of an error: ASCII, at most 80 characters."""
    plain = ascii(text)[1:-1] if isinstance(text, str) else type(text).__name__
    return plain if len(plain) <= 80 else plain[:77] + "..."


def is_shape(value: object) -> bool:
    """Whether `value` is a list or tuple of non-negative ints that mlx can hold as a shape."""
    return (
        isinstance(value, list | tuple)
        and len(value) <= MAX_RANK
        and all(type(size) is int and 0 <= size <= MAX_DIM for size in value)
    )


def map_file(path: Path) -> mmap.mmap:
    """Map `path` read-only; CheckpointError if it is unreadable, empty or a git-lfs pointer."""
    try:
        with path.open("rb") as file:
            if not (start := file.read(len(LFS_MARK))):
                fail(path, "the file is empty")
            if start == LFS_MARK:
                fail(
                    path,
                    "this is a git-lfs pointer, a text file that stands for the weights",
                    "fetch the weights with `git lfs pull`",
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error


def to_array(
    data: mmap.mmap, info: TensorInfo, start: int, strides: tuple[int, ...] | None = None
) -> mx.array:
    """Copy one tensor out of a mapped file, as an evaluated array of `info.shape`.

    `start` is a byte offset, `strides` counts elements (None: row-major). The dtype is kept,
    float8 comes as uint8, float64 can be computed with on the CPU only.
    """
    itemsize, dtype = DTYPES[info.dtype]
    if 0 in info.shape:
        return mx.zeros(info.shape, dtype=dtype, stream=mx.cpu)
    steps = None if strides is None else tuple(step * itemsize for step in strides)
    raw: Any = np.ndarray(info.shape, _CARRIERS[itemsize], data, start, steps)
    bits = mx.array(np.require(raw, requirements=["C", "A"]))
    array = bits != 0 if dtype == mx.bool_ else bits.view(dtype, stream=mx.cpu)
    mx.eval(array)
    if hasattr(mmap, "MADV_DONTNEED"):
        # The array is a copy: pages read so far need not count as this process's memory.
        data.madvise(mmap.MADV_DONTNEED)
    return array


class MappedFile:
    """A weight file in memory-mapped form; a reader fills in what it found in the header."""

    path: Path
    infos: Mapping[str, TensorInfo]
    _data: mmap.mmap
    _start: int  # where the tensors' data begin
    _begins: Mapping[str, int]  # of each tensor, from there

    def read(self, name: str) -> mx.array:
        """Read one tensor, shape and dtype as in `infos`; CheckpointError for an unknown name."""
        if name not in self.infos:
            fail(self.path, f"has no tensor '{shown(name)}'", f"it holds {len(self.infos)} others")
        return to_array(self._data, self.infos[name], self._start + self._begins[name])

    def close(self) -> None:
        """Let go of the file; arrays already read stay valid."""
        self._data.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SafetensorsFile(MappedFile):
    """Tensors of one `.safetensors` file, one that passes every check of the header.

    `metadata` is the file's own `__metadata__`, empty when there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self._data = map_file(path)
        try:
            header, self._start = _read_header(path, self._data)
            self.metadata = _read_metadata(path, header.pop("__metadata__", None))
            self.infos = {name: _read_info(path, name, entry) for name, entry in header.items()}
            self._begins = {name: entry["data_offsets"][0] for name, entry in header.items()}
            self._check_layout()
        except BaseException:
            self.close()
            raise

    def _check_layout(self) -> None:
        """Tensors must follow each other without a gap, from the header to the end of the file."""
        end = 0
        for name in sorted(self.infos, key=lambda n: (self._begins[n], self.infos[n].nbytes)):
            begin = self._begins[name]
            if begin != end:
                what = "overlaps another tensor" if begin < end else "leaves a gap before it"
                fail(self.path, f"tensor '{shown(name)}' at byte {begin} {what} (expected {end})")
            end += self.infos[name].nbytes
        expected, found = self._start + end, len(self._data)
        if found < expected:
            fail(self.path, f"the file is truncated: expected {expected} bytes, found {found}")
        if found > expected:
            fail(self.path, f"trailing bytes: expected {expected} bytes, found {found}")


def _read_header(path: Path, data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The JSON header as a dict, and the byte offset where the tensor data starts."""
    if len(data) < 8:
        fail(path, f"the file is truncated: expected at least 8 bytes, found {len(data)}")
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER:
        fail(path, f"not a safetensors file: it claims a header of {length} bytes")
    if 8 + length > len(data):
        fail(path, f"the file is truncated: expected {8 + length} bytes or more, found {len(data)}")
    try:
        header = json.loads(data[8 : 8 + length].decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        fail(path, f"the header is not valid JSON ({shown(str(error))})")
    if not isinstance(header, dict):
        fail(path, f"the header is a JSON {type(header).__name__}, expected an object")
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"duplicate key {name!r}")
        result[name] = value
    return result


def _read_metadata(path: Path, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        fail(path, "`__metadata__` is not an object of strings")
    return value


def _read_info(path: Path, name: str, entry: Any) -> TensorInfo:
    """Check one header entry by itself; layout and file size are checked over all of them."""
    where = f"tensor '{shown(name)}'"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        fail(path, f"{where} lacks one of `dtype`, `shape`, `data_offsets`")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        fail(path, f"{where} has the unknown dtype '{shown(dtype)}'", f"known: {', '.join(DTYPES)}")
    if not is_shape(shape):
        fail(path, f"{where} has an impossible shape (negative, too large or not a list of ints)")
    if not (
        isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(offset) is int for offset in offsets)
        and 0 <= offsets[0] <= offsets[1]
    ):
        fail(path, f"{where} has impossible `data_offsets`")
    info = TensorInfo(dtype, tuple(shape))
    if info.nbytes != offsets[1] - offsets[0]:
        size = offsets[1] - offsets[0]
        fail(path, f"{where} has {size} bytes, but its dtype and shape need {info.nbytes}")
    return info
