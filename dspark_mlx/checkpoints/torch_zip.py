"""A PyTorch zip file (`torch.save` of a state dict), read without PyTorch.

Storages are mapped from the archive where they lie, so a large file is never read whole.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from dspark_mlx.checkpoints.safetensors_file import (
    DTYPES,
    MappedFile,
    fail,
    map_file,
    shown,
    to_array,
)
from dspark_mlx.checkpoints.torch_pickle import RefusedError, TensorRecord, read_pickle

MAX_PICKLE = 16 * 2**20  # bytes of data.pkl; one tensor takes about 100
WRAPPERS = ("state_dict", "model")  # keys under which training scripts nest the weights

_LEGACY_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
_RESAVE = "save it again with torch.save(..., _use_new_zipfile_serialization=True)"
_SAFER = "a weight file has no need of that; use a safetensors version of it"
_ZIP_ERRORS = (zipfile.BadZipFile, OSError, ValueError, struct.error, NotImplementedError)
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, of the extra field


class TorchZipFile(MappedFile):
    """Tensors of one `torch.save`d state dict, flat or under one of the keys in `WRAPPERS`.

    `ignored` names the entries beside the tensors that are none (step counts, settings).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self._data = map_file(path)
        try:
            self._entries, self._prefix = self._open_archive()
            self._check_byte_order()
            self._tensors, self.ignored = _find_tensors(path, self._load_pickle())
            self._starts = {name: self._find(name, t) for name, t in self._tensors.items()}
        except BaseException:
            self.close()
            raise
        self.infos = {n: t.info for n, t in self._tensors.items()}

    def read(self, name: str) -> mx.array:
        """Read one tensor, shape and dtype as in `infos`; CheckpointError for an unknown name."""
        if name not in self._tensors:
            fail(self.path, f"has no tensor '{shown(name)}'", f"it holds {len(self.infos)} others")
        tensor = self._tensors[name]
        return to_array(self._data, tensor.info, self._starts[name], tensor.strides)

    def _open_archive(self) -> tuple[dict[str, zipfile.ZipInfo], str]:
        """All entries by name, and the folder inside the archive that holds data.pkl."""
        start = self._data[:32]
        if _LEGACY_MAGIC in start:
            fail(self.path, "written in PyTorch's old format, before 1.6", _RESAVE)
        if not start.startswith(b"PK\x03\x04"):
            fail(self.path, "not a PyTorch zip file")
        try:
            with zipfile.ZipFile(self.path) as archive:
                listed = archive.infolist()
        except _ZIP_ERRORS as error:
            fail(self.path, f"the zip directory is unreadable, truncated? ({shown(str(error))})")
        entries = {entry.filename: entry for entry in listed}
        if len(entries) != len(listed):
            fail(self.path, "two entries of the zip have the same name")
        roots = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(roots) != 1:
            fail(self.path, f"the zip holds {len(roots)} files `*/data.pkl`, expected one")
        return entries, roots[0].removesuffix("data.pkl")

    def _check_byte_order(self) -> None:
        name = f"{self._prefix}byteorder"
        if name not in self._entries:
            return  # older versions of PyTorch do not write it
        start, size = self._locate(name)
        if self._data[start : start + min(size, 16)] != b"little":
            fail(self.path, "not in little-endian byte order", "save it again on another machine")

    def _load_pickle(self) -> object:
        start, size = self._locate(f"{self._prefix}data.pkl")
        if size > MAX_PICKLE:
            fail(self.path, f"data.pkl has {size} bytes, more than {MAX_PICKLE}", _SAFER)
        try:
            return read_pickle(self._data[start : start + size])
        except RefusedError as error:
            fail(self.path, f"refused: {error}", _SAFER)
        except ValueError as error:
            fail(self.path, f"data.pkl is damaged ({error})")

    def _locate(self, name: str) -> tuple[int, int]:
        """Byte offset and size of an entry's data in the file; stored, plain entries only."""
        entry = self._entries.get(name)
        if entry is None:
            fail(self.path, f"the zip lacks {shown(name)}")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            fail(self.path, f"{shown(name)} is compressed or encrypted in the zip", _RESAVE)
        begin, size = entry.header_offset, entry.file_size
        if not 0 <= begin <= len(self._data) - _LOCAL_HEADER.size or size != entry.compress_size:
            fail(self.path, f"the zip directory is damaged at {shown(name)}")
        mark, name_length, extra_length = _LOCAL_HEADER.unpack_from(self._data, begin)
        named = begin + _LOCAL_HEADER.size
        start = named + name_length + extra_length
        intact = mark == b"PK\x03\x04" and self._data[named : named + name_length] == _raw(entry)
        if not intact or start + size > len(self._data):
            fail(self.path, f"the zip entry {shown(name)} is damaged or truncated")
        return start, size

    def _find(self, name: Any, tensor: TensorRecord) -> int:
        """Byte offset of a tensor's first element, its storage being there in full."""
        if not isinstance(name, str):
            fail(self.path, f"a tensor is stored under the key {shown(str(name))}, not a name")
        storage = tensor.storage
        start, size = self._locate(f"{self._prefix}data/{storage.key}")
        if size != storage.nbytes:
            found = f"the storage of '{shown(name)}' has {size} bytes, expected {storage.nbytes}"
            fail(self.path, found)
        return start + tensor.offset * DTYPES[tensor.info.dtype][0]


def _raw(entry: zipfile.ZipInfo) -> bytes:
    """The name of an entry as its bytes stand in the file."""
    return entry.orig_filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437")


def _find_tensors(path: Path, value: object) -> tuple[dict[Any, TensorRecord], tuple[str, ...]]:
    """The tensors of `value`, or of the dict under one of `WRAPPERS`; names of all else."""
    if not isinstance(value, dict):
        fail(path, "holds no dictionary of tensors", "save model.state_dict() instead")
    if found := _tensors_of(value):
        return found, _others(value, found)
    nested = {key: tensors for key in WRAPPERS if (tensors := _tensors_of(value.get(key)))}
    if len(nested) == 1:
        ((key, found),) = nested.items()
        return found, _others(value, nested) + _others(value[key], found)
    keys = ", ".join(shown(str(key)) for key in list(value)[:10]) or "none"
    what = f"tensors under both {' and '.join(nested)}" if nested else "no tensors where expected"
    fail(path, f"{what}; its keys: {keys}", "save model.state_dict() alone")


def _tensors_of(value: object) -> dict[Any, TensorRecord]:
    if not isinstance(value, dict):
        return {}
    return {name: entry for name, entry in value.items() if isinstance(entry, TensorRecord)}


def _others(value: dict[Any, Any], found: Mapping[Any, object]) -> tuple[str, ...]:
    return tuple(str(name) for name in value if name not in found)
