"""From names or folders to a Pair: target, drafter and tokenizer, in the right precision."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from huggingface_hub.errors import StrictDataclassError
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.utils import dequantize_model, load_model

from . import blas, hub
from .cache import KVQuantization
from .checkpoints import DrafterSource, open_drafter
from .checkpoints.source import read_config
from .drafters.packing import BITS
from .drafters.weights import load_drafter
from .errors import CheckpointError, OptionError
from .fit import Strings, check_fit, folder_strings, tokenizer_strings
from .pair import Pair
from .registry import Progress, entry_of
from .sharing import share_tables
from .sync import settle
from .targets.base import Target

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
KEEP = "keep"
# what mlx-lm and transformers raise over a folder that is not as they expect
FOREIGN = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError,
    ImportError, OSError, RuntimeError, StrictDataclassError,
)  # fmt: skip


def load(
    target: str | Path,
    drafter: str | Path | bool | None = None,
    *,
    quantize: int | str | None = None,
    dtype: str | None = None,
    kv_bits: int | None = None,
    kv_group_size: int | None = None,
    quantized_kv_start: int | None = None,
    progress: Progress | None = None,
) -> Pair:
    """Load a target and its drafter, checked to fit each other.

    target, drafter: a name of `registry.MODELS`, a hub id, or a folder (a drafter's may be
    converted or in a supported source form). drafter None takes the table's; False decodes
    plainly. quantize: 4 or 8 quantizes the drafter; "keep" keeps stored quantizations where
    they would be undone (on the CPU backend, where float32 is the fast path). dtype: "float32",
    "bfloat16" or "float16" for both; None is float32 on CPU and the stored one elsewhere.
    kv_bits: quantize the target's KV caches, in groups of kv_group_size (64) from
    quantized_kv_start (0) positions on, as mlx-lm's generation does with the same settings.

    Raises CheckpointError, PairError, FetchError or OptionError, each one line.
    """
    blas.advise()
    plan = _Plan(quantize, dtype)
    kv = _kv_plan(kv_bits, kv_group_size, quantized_kv_start)
    name = str(target)
    if drafter is True:
        raise OptionError("drafter=True means nothing; give a name, a folder, None or False")
    folder = hub.target_folder(name, progress)
    read_config(folder)  # before any talk of drafters: is this a model at all?
    source = None
    if drafter is not False:
        where = hub.default_drafter(name) if drafter is None else hub.drafter_folder(str(drafter))
        source = open_drafter(where)
    model = load_target(folder, name, dequantize=plan.dequantize, dtype=plan.dtype, kv=kv)
    tokenizer, stops = load_tokenizer(folder)
    entry = entry_of(name)
    draft = None if source is None else _load_beside(model, tokenizer, source, plan)
    return Pair(model, draft, tokenizer, entry.thinking if entry else None, stops)


def with_drafter(
    pair: Pair, drafter: str | Path, *, quantize: int | str | None = None, dtype: str | None = None
) -> Pair:
    """The same loaded target beside another drafter; options and errors as `load`'s."""
    source = open_drafter(hub.drafter_folder(str(drafter)))
    loaded = _load_beside(pair.target, pair.tokenizer, source, _Plan(quantize, dtype))
    return dataclasses.replace(pair, drafter=loaded)


def _load_beside(target: Target, tokenizer: Any, source: DrafterSource, plan: _Plan) -> Any:
    check_fit(
        target,
        source.config,
        str(source.folder),
        tokens=lambda: tokenizer_strings(tokenizer),
        drafted=folder_strings(source.folder),
    )
    with source.tensors:
        drafter = load_drafter(
            source, bits=plan.bits, dequantize=plan.dequantize or bool(plan.bits), dtype=plan.dtype
        )
    drafter.bind(target)
    share_tables(drafter, target)
    if drafter.dtype == mx.float16:
        _check_range(target, drafter, str(source.folder))
    return drafter


def _check_range(target: Target, drafter: Any, where: str) -> None:
    """Raise CheckpointError where hidden states pass float16's largest number, 65504.

    Nothing else would show it: drafts of NaN are all rejected, and the text stays right.
    """
    ids, context = mx.arange(min(8, target.vocab_size)), drafter.start()
    _, features = target.tapped(drafter.config.target_layer_ids)(ids, target.new_cache())
    drafter.extend(context, features, ids)
    rows = drafter.forced_rows(context, [0], 1)
    if not mx.all(mx.isfinite(rows)).item():
        raise CheckpointError(
            f"{where}: its hidden states overflow float16; load it as bfloat16 or float32 (--dtype)"
        )


def load_target(
    folder: Path,
    name: str,
    *,
    dequantize: bool = False,
    dtype: mx.Dtype | None = None,
    lazy: bool = False,
    kv: KVQuantization | None = None,
) -> Target:
    """Load a target with mlx-lm; de-quantized or cast where asked. One line on any failure.

    `lazy` leaves the weights on disk until they are used.
    """
    config = read_config(folder)
    try:
        model, config = load_model(folder, lazy=True, model_config=_flat_rope(config))
    except FOREIGN as error:
        raise CheckpointError(f"{folder} cannot be loaded as a target: {_reason(error)}") from error
    if dequantize and ("quantization" in config or "quantization_config" in config):
        dequantize_model(model)
    if dtype is not None:
        model.set_dtype(dtype)
    if not lazy:
        settle(model)
    loaded = Target(model, config, name, kv)
    loaded.check()
    return loaded


class _Plan:
    """What precision the options mean on the device at hand."""

    def __init__(self, quantize: int | str | None, dtype: str | None) -> None:
        if quantize not in (None, KEEP, *BITS) or isinstance(quantize, bool | float):
            raise OptionError(f'quantize must be None, "keep", 4 or 8, not {quantize!r}')
        if dtype is not None and dtype not in DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        on_cpu = mx.default_device() == mx.cpu
        self.bits = quantize if isinstance(quantize, int) else None
        self.dequantize = on_cpu and quantize is None
        self.dtype = DTYPES[dtype or "float32"] if dtype or on_cpu else None


def _kv_plan(bits: int | None, group: int | None, start: int | None) -> KVQuantization | None:
    if bits is None:
        if group is not None or start is not None:
            raise OptionError("kv_group_size and quantized_kv_start mean nothing without kv_bits")
        return None
    return KVQuantization(bits, 64 if group is None else group, start or 0)


def _flat_rope(config: dict[str, Any]) -> dict[str, Any]:
    """What to add to a config so that every mlx-lm model finds its rope settings.

    Transformers 5 nests them; several models read only the flat keys and would fall back to
    their default theta without a word.
    """
    flat = _flat_keys(config)
    if isinstance(text := config.get("text_config"), dict) and (inner := _flat_keys(text)):
        flat["text_config"] = text | inner
    return flat


def _flat_keys(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("rope_parameters")
    if not isinstance(nested, dict) or "rope_theta" not in nested:
        return {}
    flat: dict[str, Any] = {}
    if config.get("rope_theta") is None:
        flat["rope_theta"] = nested["rope_theta"]
    if config.get("rope_scaling") is None and nested.get("rope_type", "default") != "default":
        flat["rope_scaling"] = nested
    return flat


def load_tokenizer(folder: Path) -> tuple[Any, frozenset[int]]:
    """mlx-lm's tokenizer wrapper, and the stop tokens of every file that names some."""
    stops: set[int] = set()
    try:
        for file in ("config.json", "generation_config.json"):
            path = folder / file
            if path.is_file():
                stops |= _eos_ids(json.loads(path.read_text(encoding="utf-8")))
        tokenizer = mlx_lm_utils.load_tokenizer(folder, eos_token_ids=sorted(stops))
    except FOREIGN as error:
        raise CheckpointError(f"{folder}: no usable tokenizer: {_reason(error)}") from error
    return tokenizer, frozenset(tokenizer.eos_token_ids)


def target_strings(folder: Path) -> Strings | None:
    """Token strings of a target's folder, by whatever tokenizer files it has."""
    return folder_strings(folder) or tokenizer_strings(load_tokenizer(folder)[0])


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _eos_ids(config: dict[str, Any]) -> set[int]:
    value = config.get("eos_token_id", (config.get("text_config") or {}).get("eos_token_id"))
    if value is None:
        return set()
    return set(value) if isinstance(value, list) else {value}
