"""Drafter modules with their weights: checked by name, shape and finiteness."""

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
from dspark_mlx.errors import CheckpointError
from dspark_mlx.sync import settle

from . import build_drafter
from .packing import lay_out_packed, quantize_drafter

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
        lay_out_packed(drafter, config.quantization)
    return drafter


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
