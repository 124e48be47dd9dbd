"""Drafter modules with their weights: checked by name, shape and finiteness; quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model

from dspark_mlx.checkpoints import DrafterSource
from dspark_mlx.checkpoints.tensors import TensorInfo
from dspark_mlx.config import DrafterConfig
from dspark_mlx.config_rules import GROUP_SIZES
from dspark_mlx.errors import CheckpointError, OptionError
from dspark_mlx.sync import settle

from . import build_drafter

BITS = (4, 8)
FLOATS = ("F32", "BF16", "F16")
INTEGERS = {"draft_ids": ("I32", "U32", "I64")}


def load_drafter(
    source: DrafterSource,
    *,
    bits: int | None = None,
    dequantize: bool = False,
    dtype: mx.Dtype | None = None,
) -> Any:
    """A drafter with its weights in memory, every one checked to be present and finite.

    `bits` quantizes an unquantized drafter; `dequantize` undoes a stored quantization; `dtype`
    casts what is not quantized. Raises CheckpointError naming the tensors that are wrong.
    """
    drafter = empty_drafter(source.config)
    check_tensors(parameter_shapes(drafter), source.tensors.infos, str(source.folder))
    weights = [(name, source.tensors.read(name)) for name in source.tensors.infos]
    check_finite(dict(weights), str(source.folder))
    check_draft_ids(dict(weights), source.config.vocab_size, str(source.folder))
    drafter.load_weights(weights)
    if dequantize and source.config.quantization:
        dequantize_model(drafter)
    if dtype is not None:
        drafter.set_dtype(dtype)
        check_finite(dict(tree_flatten(drafter.parameters())), f"{source.folder} as {dtype}")
    if bits is not None:
        quantize_drafter(drafter, bits, 64)
    drafter.eval()
    settle(drafter)
    return drafter


def empty_drafter(config: DrafterConfig) -> Any:
    """A drafter of the config's shape whose weights were never computed (quantized as stated)."""
    drafter = build_drafter(config)
    if config.quantization:
        group_size, modules = config.quantization["group_size"], config.quantization["modules"]

        def settings_of(path: str, module: nn.Module) -> dict[str, int] | bool:
            return path in modules and {"group_size": group_size, "bits": modules[path]}

        try:
            nn.quantize(drafter, class_predicate=settings_of)
        except ValueError as error:
            raise CheckpointError(f"the config's quantization does not fit: {error}") from error
    return drafter


def quantize_drafter(
    drafter: Any,
    bits: int,
    group_size: int,
) -> dict[str, Any]:
    """Quantize every matrix whose width allows it; return the config's `quantization` entry.

    The entry is {"group_size": n, "modules": {path: bits}}. The confidence head is never
    quantized: it is one row.
    """
    if bits not in BITS:
        raise OptionError(f"a drafter can be quantized to 4 or 8 bits, not {bits!r}")
    if group_size not in GROUP_SIZES:
        raise OptionError(f"the group size must be 32, 64 or 128, not {group_size!r}")
    modules: dict[str, int] = {}

    def settings_of(path: str, module: nn.Module) -> dict[str, int] | bool:
        fits = hasattr(module, "to_quantized") and module.weight.shape[-1] % group_size == 0
        if not fits or path.startswith("confidence_head"):
            return False
        modules[path] = bits
        return {"group_size": group_size, "bits": modules[path]}

    nn.quantize(drafter, class_predicate=settings_of)
    return {"group_size": group_size, "modules": modules}


def parameter_shapes(drafter: nn.Module) -> dict[str, tuple[int, ...]]:
    """Every parameter's name and shape."""
    return {name: tuple(value.shape) for name, value in tree_flatten(drafter.parameters())}


def check_tensors(
    expected: Mapping[str, tuple[int, ...]], found: Mapping[str, TensorInfo], where: str
) -> None:
    """Raise CheckpointError listing missing, unused, wrongly shaped and wrongly typed tensors."""
    problems = []
    packed = {f"{name[:-6]}weight" for name in expected if name.endswith(".scales")}
    if missing := sorted(set(expected) - set(found)):
        problems.append(f"missing {_listed(missing)}")
    if unused := sorted(set(found) - set(expected)):
        problems.append(f"not part of such a drafter: {_listed(unused)}")
    problems += [
        f"{name} has shape {list(found[name].shape)}, expected {list(shape)}"
        for name, shape in sorted(expected.items())
        if name in found and tuple(found[name].shape) != shape
    ]
    for name in sorted(set(expected) & set(found)):
        dtypes = ("U32",) if name in packed else INTEGERS.get(name, FLOATS)
        if found[name].dtype not in dtypes:
            problems.append(f"{name} is {found[name].dtype}, expected {' or '.join(dtypes)}")
    if problems:
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise CheckpointError(f"{where}: {'; '.join(problems[:8])}{more}")


def check_finite(weights: Mapping[str, mx.array], where: str) -> None:
    """Raise CheckpointError naming the tensors that hold NaN or infinity."""
    if bad := [name for name, value in weights.items() if not _finite(value)]:
        raise CheckpointError(f"{where}: NaN or infinite values in {_listed(bad)}")


def check_draft_ids(weights: Mapping[str, mx.array], vocabulary: int, where: str) -> None:
    """Raise CheckpointError when a vocabulary map names a token twice, or one that is not there."""
    if "draft_ids" not in weights:
        return
    ids: Any = weights["draft_ids"].tolist()
    if bad := [i for i in ids if not 0 <= i < vocabulary]:
        raise CheckpointError(f"{where}: draft_ids has {bad[0]}, outside 0..{vocabulary - 1}")
    if len(set(ids)) != len(ids):
        raise CheckpointError(f"{where}: draft_ids names {len(ids) - len(set(ids))} tokens twice")


def _finite(value: mx.array) -> bool:
    if not mx.issubdtype(value.dtype, mx.floating):
        return True
    return bool(mx.all(mx.isfinite(value)).item())


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
