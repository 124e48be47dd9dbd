"""The pickle inside a PyTorch file, read without PyTorch and without executing anything.

It is not given to `pickle`: a small machine steps through its opcodes and knows only those
that a saved state dict needs. `pickle.Unpickler` is no base for this, even with `find_class`
closed: nine bytes make its memo allocate gigabytes, and a deeply nested tuple used as a
dictionary key overflows the C stack. Here every name leads to an inert record of this file.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dspark_mlx.checkpoints.safetensors_file import DTYPES, TensorInfo, is_shape, shown


@dataclass(frozen=True, eq=False)
class _StorageType:
    dtype: str | None  # None: untyped bytes


@dataclass(frozen=True, eq=False)
class _DType:
    dtype: str


@dataclass(frozen=True, eq=False)
class _Function:
    apply: Callable[[tuple[Any, ...]], object]


@dataclass(frozen=True, eq=False)
class StorageRecord:
    """Where a tensor's bytes lie: an entry of the archive, by its key."""

    dtype: str | None
    key: str
    count: int  # elements, or bytes when untyped

    @property
    def nbytes(self) -> int:
        """Bytes that the archive must hold under `key`."""
        return self.count * (1 if self.dtype is None else DTYPES[self.dtype][0])


@dataclass(frozen=True, eq=False)
class TensorRecord:
    """A strided window on a storage, checked to lie inside it."""

    storage: StorageRecord
    info: TensorInfo
    offset: int
    strides: tuple[int, ...]  # both in elements


class RefusedError(ValueError):
    """Why a pickle is not read; the message completes the sentence `refused: `."""


def read_pickle(data: bytes) -> object:
    """The value that a data.pkl describes: plain values, dicts, lists and TensorRecords.

    RefusedError for what no state dict needs, ValueError for bytes that are no whole pickle.
    """
    try:
        return _Machine().run(data)
    except RefusedError:
        raise
    except (ValueError, LookupError, OverflowError, struct.error, Warning) as error:
        # Warning: pickletools warns of odd escapes, which `python -W error` raises.
        raise ValueError(shown(f"{type(error).__name__}: {error}")) from error


def _ordered_dict(args: tuple[Any, ...]) -> object:
    if args:
        raise RefusedError("an OrderedDict built from arguments")
    return {}


def _size(args: tuple[Any, ...]) -> object:
    if len(args) != 1 or not is_shape(args[0]):
        raise RefusedError("a torch.Size that is not a shape")
    return tuple(args[0])


def _tensor_v2(args: tuple[Any, ...]) -> object:
    """(storage, offset, size, stride, requires_grad, hooks[, metadata])."""
    if len(args) not in (6, 7) or (len(args) == 7 and args[6]):
        raise RefusedError("a tensor with unexpected arguments")
    return _tensor(args[0], args[1:4], getattr(args[0], "dtype", None))


def _tensor_v3(args: tuple[Any, ...]) -> object:
    """(storage, offset, size, stride, requires_grad, hooks, dtype[, metadata])."""
    if len(args) not in (7, 8) or (len(args) == 8 and args[7]) or not isinstance(args[6], _DType):
        raise RefusedError("a tensor with unexpected arguments")
    return _tensor(args[0], args[1:4], args[6].dtype)


def _tensor(storage: object, place: tuple[Any, ...], dtype: str | None) -> TensorRecord:
    """Check everything that can be checked without the data: types, signs, bounds."""
    offset, shape, strides = place
    if (
        not isinstance(storage, StorageRecord)
        or dtype is None
        or storage.dtype not in (None, dtype)
    ):
        raise RefusedError("a tensor without a typed storage")
    if not is_shape(shape) or not is_shape(strides) or len(shape) != len(strides):
        raise RefusedError("a tensor with an impossible shape or stride")
    if type(offset) is not int or offset < 0:
        raise RefusedError("a tensor with a negative or odd storage offset")
    info = TensorInfo(dtype, tuple(shape))
    itemsize = DTYPES[dtype][0]
    last = offset + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if 0 not in shape and (last + 1) * itemsize > storage.nbytes:
        raise RefusedError("a tensor that reads outside its storage")
    if info.nbytes > storage.nbytes:
        raise RefusedError("a tensor larger than its storage (expanded, not contiguous)")
    return TensorRecord(storage, info, offset, tuple(strides))


def _parameter(args: tuple[Any, ...]) -> object:
    """(tensor, requires_grad, hooks[, state])."""
    if len(args) not in (3, 4) or not isinstance(args[0], TensorRecord):
        raise RefusedError("a parameter that is not made of a tensor")
    return args[0]


_TORCH_NAMES = {  # dtype -> (torch dtype, legacy storage class)
    "F32": ("float32", "FloatStorage"),
    "F16": ("float16", "HalfStorage"),
    "BF16": ("bfloat16", "BFloat16Storage"),
    "F64": ("float64", "DoubleStorage"),
    "I64": ("int64", "LongStorage"),
    "I32": ("int32", "IntStorage"),
    "I16": ("int16", "ShortStorage"),
    "I8": ("int8", "CharStorage"),
    "U8": ("uint8", "ByteStorage"),
    "BOOL": ("bool", "BoolStorage"),
    "C64": ("complex64", "ComplexFloatStorage"),
    "U16": ("uint16", None),
    "U32": ("uint32", None),
    "U64": ("uint64", None),
    "F8_E4M3": ("float8_e4m3fn", None),
    "F8_E5M2": ("float8_e5m2", None),
    "F8_E8M0": ("float8_e8m0fnu", None),
}
# The only names a file may ask for, spelled as pickletools does. None leads to a real object.
_GLOBALS: dict[str, object] = {
    "collections OrderedDict": _Function(_ordered_dict),
    "torch Size": _Function(_size),
    "torch device": _Function(lambda args: None),
    "torch._utils _rebuild_tensor_v2": _Function(_tensor_v2),
    "torch._utils _rebuild_tensor_v3": _Function(_tensor_v3),
    "torch._utils _rebuild_parameter": _Function(_parameter),
    "torch._utils _rebuild_parameter_with_state": _Function(_parameter),
    "torch UntypedStorage": _StorageType(None),
    "torch.storage UntypedStorage": _StorageType(None),
    **{f"torch {torch}": _DType(dtype) for dtype, (torch, _) in _TORCH_NAMES.items()},
    **{f"torch {old}": _StorageType(dtype) for dtype, (_, old) in _TORCH_NAMES.items() if old},
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = set(
    "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "BINBYTES SHORT_BINBYTES BINSTRING SHORT_BINSTRING".split()
)
_EMPTY: dict[str, Callable[[], object]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_KEYS = (str, int, float, type(None))  # hashing a tuple recurses, so it is no key here


class _Machine:
    """Runs the opcodes of one data.pkl over plain values and the inert records above."""

    def __init__(self) -> None:
        self._levels: list[list[Any]] = [[]]  # a new level per MARK
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> object:
        for opcode, arg, _ in pickletools.genops(data):
            self._step(opcode.name, arg)
        return self._levels[-1].pop()

    def _step(self, name: str, arg: Any) -> None:
        stack = self._levels[-1]
        if name in _LITERALS:
            stack.append(arg)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[arg])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[arg] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name == "MARK":
            self._levels.append([])
        elif name == "GLOBAL":
            stack.append(_resolve(arg))
        elif handler := _HANDLERS.get(name):
            handler(self)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise RefusedError(f"the pickle opcode {name}, which no state dict needs")

    def _pop(self, count: int) -> list[Any]:
        stack = self._levels[-1]
        if len(stack) < count:
            raise IndexError("stack underflow")
        taken = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return taken

    def _marked(self) -> list[Any]:
        if len(self._levels) < 2:
            raise IndexError("no MARK on the stack")
        return self._levels.pop()

    def _tuple(self, items: list[Any]) -> None:
        self._levels[-1].append(tuple(items))

    def _extend(self, items: list[Any]) -> None:
        target = self._levels[-1][-1]
        if not isinstance(target, list):
            raise RefusedError("items appended to something that is no list")
        target.extend(items)

    def _assign(self, items: list[Any]) -> None:
        target = self._levels[-1][-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise RefusedError("keys set on something that is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, _KEYS):
                raise RefusedError(f"a dictionary key of type {type(key).__name__}")
            target[key] = value

    def _global(self) -> None:
        module, name = self._pop(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise RefusedError("a global whose name is no text")
        self._levels[-1].append(_resolve(f"{module} {name}"))

    def _reduce(self) -> None:
        function, args = self._pop(2)
        if not isinstance(function, _Function) or not isinstance(args, tuple):
            raise RefusedError("a call of something that is no function")
        self._levels[-1].append(function.apply(args))

    def _build(self) -> None:
        target, _ = self._pop(2)
        if not isinstance(target, dict):
            raise RefusedError("state set on something that is no OrderedDict")
        self._levels[-1].append(target)  # the state is dropped; torch keeps version numbers there

    def _persistent(self) -> None:
        """("storage", type, key, device, count)."""
        (pid,) = self._pop(1)
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
            raise RefusedError("a persistent id that is no storage")
        _, kind, key, _, count = pid
        if not isinstance(kind, _StorageType) or not isinstance(key, str):
            raise RefusedError("a storage of unknown type")
        if type(count) is not int or count < 0:
            raise RefusedError("a storage of impossible size")
        self._levels[-1].append(StorageRecord(kind.dtype, key, count))


def _resolve(name: str) -> object:
    if name not in _GLOBALS:
        raise RefusedError(f"the file asks for {shown(name.replace(' ', '.', 1))}")
    return _GLOBALS[name]


_HANDLERS: dict[str, Callable[[_Machine], None]] = {
    "TUPLE": lambda m: m._tuple(m._marked()),
    "TUPLE1": lambda m: m._tuple(m._pop(1)),
    "TUPLE2": lambda m: m._tuple(m._pop(2)),
    "TUPLE3": lambda m: m._tuple(m._pop(3)),
    "APPEND": lambda m: m._extend(m._pop(1)),
    "APPENDS": lambda m: m._extend(m._marked()),
    "SETITEM": lambda m: m._assign(m._pop(2)),
    "SETITEMS": lambda m: m._assign(m._marked()),
    "STACK_GLOBAL": _Machine._global,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
    "BINPERSID": _Machine._persistent,
}
