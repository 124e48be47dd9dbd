"""NVIDIA's drafters: DeepSpec's or z-lab's form, matrices packed to NVFP4 by modelopt.

A packed matrix is `weight` (two 4-bit floats a byte, the low half first), `weight_scale` (a
float8 per 16 columns) and `weight_scale_2` (one float32 for all).
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

import mlx.core as mx

from dspark_mlx.config import DrafterConfig
from dspark_mlx.errors import UnsupportedError

from . import deepspec, reading, zlab
from .mapping import Made, MappedTensors, unchanged
from .reading import Config, Infos, refuse
from .tensors import TensorInfo, TensorSource

NAME = "NVIDIA modelopt NVFP4"
FORMS = (deepspec, zlab)
MARKS = ("quantization_config", "hf_quant_config")
GROUP = 16  # columns that share a scale
SCALE, SCALE_2 = "weight_scale", "weight_scale_2"
ALGORITHMS = ("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ", "MIXED_PRECISION")
_WHERE_STATED = (
    "quantization_config.quant_algo",
    "quantization_config.quantization.quant_algo",
    "hf_quant_config.quantization.quant_algo",
)


def matches(config: Config) -> bool:
    """Whether a config of one of those forms says that its weights are packed."""
    return any(config.get(mark) for mark in MARKS) and _form(config) is not None


def view(config: Config, tensors: TensorSource, where: str) -> TensorSource:
    """Packed matrices as the bfloat16 ones that they stand for."""
    method = reading.found_at(config, "quantization_config.quant_method")
    if method not in (None, "modelopt"):
        reading.refuse_quantized(config, where)
    stated = {p: v for p in _WHERE_STATED if (v := reading.found_at(config, p)) is not None}
    for path, algorithm in stated.items():
        if algorithm not in ALGORITHMS:
            raise UnsupportedError(
                f"{where}: {path} {short(algorithm)} is not read; {', '.join(ALGORITHMS)} are"
            )
    made = unchanged(tensors)
    for name in [name for name in made if name.endswith(f".{SCALE_2}")]:
        made = _decoded(made, name.removesuffix(SCALE_2), where)
    return _form(config).view(_plain(config), MappedTensors(tensors, made), where)


def resolve(config: Config, infos: Infos, where: str) -> DrafterConfig:
    """As the form whose keys the config bears."""
    form: DrafterConfig = _form(config).resolve(_plain(config), infos, where)
    return form


def _plain(config: Config) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in MARKS}


def _form(config: Config) -> Any:
    return next((form for form in FORMS if form.matches(_plain(config))), None)


def _decoded(made: Mapping[str, Made], stem: str, where: str) -> dict[str, Made]:
    """`made` with one matrix in place of its three parts."""
    names = (f"{stem}weight", f"{stem}{SCALE}", f"{stem}{SCALE_2}")
    if missing := [name for name in names if name not in made]:
        refuse(where, f"{names[2]} is there, but {missing[0]} is missing")
    weight, scale, whole = (made[name].info for name in names)
    rows, half = weight.shape if len(weight.shape) == 2 else (0, 0)
    expected = {
        names[0]: TensorInfo("U8", (rows, half)),
        names[1]: TensorInfo("F8_E4M3", (rows, 2 * half // GROUP)),
        names[2]: TensorInfo("F32", whole.shape if whole.shape in ((), (1,)) else ()),
    }
    for name, info in zip(names, (weight, scale, whole), strict=True):
        if info != expected[name] or not half or 2 * half % GROUP:
            want = f"{expected[name].dtype} {list(expected[name].shape)}"
            refuse(where, f"{name} is {info.dtype} {list(info.shape)}, expected {want} of NVFP4")
    dropped = (*names, f"{stem}input_scale")  # of activations, which stay as they are here
    rest = {name: entry for name, entry in made.items() if name not in dropped}
    info = TensorInfo("BF16", (rows, 2 * half))
    return rest | {names[0]: Made(names, info, _decode)}


def _decode(packed: mx.array, scales: mx.array, whole: mx.array) -> mx.array:
    # fp4 times fp8 is exact in float32, so that this rounds once; mlx's global_scale (which is
    # the largest value, 448 * 6 * weight_scale_2) would round the product's factor as well
    # (on the CPU, where the weights are at this point: the same bits whatever the device)
    bits = packed.view(mx.uint32, stream=mx.cpu)
    parts = mx.dequantize(bits, scales, mode="nvfp4", dtype=mx.float32, stream=mx.cpu)
    values = mx.multiply(parts, whole.reshape((), stream=mx.cpu), stream=mx.cpu)
    return values.astype(mx.bfloat16, stream=mx.cpu)
