"""Unquantized GGUF drafters: llama.cpp's `dflash` (DSpark where it has a Markov head), `dspark`.

`target_layers` counts from the layer's input, one more than the layer whose output is tapped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from reprlib import repr as short
from typing import Any

import mlx.core as mx

from dspark_mlx.config import DrafterConfig
from dspark_mlx.errors import UnsupportedError

from . import block, reading
from .mapping import Made, MappedTensors, unchanged
from .reading import Config, Infos, flag, refuse
from .rope import read_rope
from .safetensors_file import DTYPES
from .tensors import TensorSource

NAME = "GGUF"
ARCHITECTURES = ("dflash", "dspark")

# under the architecture's name: our key -> theirs
NAMES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
    "block_size": "block_size",
    "target_layer_ids": "target_layers",
    "sample_from_anchor": "sample_from_anchor",
    "causal": "attention.causal",
    "sliding_window": "attention.sliding_window",
    "pattern": "attention.sliding_window_pattern",
    "scaling": "rope.scaling.type",
    "rotated": "rope.dimension_count",
    "value_dim": "attention.value_length",
    "vocab_size": "vocab_size",
    "mask_token_id": "mask_token_id",
}
REQUIRED = tuple(key for key in block.REQUIRED if key != "vocab_size")

# their tensor -> ours
TENSORS = {
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "norm.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "fc.weight": "fc.weight",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
    "dspark.fc.weight": "fc.weight",
    "dspark.hidden_norm.weight": "hidden_norm.weight",
    "dspark.markov_head_a.weight": "markov_head.markov_w1.weight",
    "dspark.markov_head_b.weight": "markov_head.markov_w2.weight",
    "dspark.confidence_head.weight": "confidence_head.proj.weight",
    "dspark.confidence_head.bias": "confidence_head.proj.bias",
}
LAYER_TENSORS = {  # after blk.N. -> after layers.N.
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_sinks.weight": "self_attn.attention_sink_bias",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
# start of a tensor's name -> what a drafter that has it would need
FOREIGN = {
    "dspark.log_snr": "the log-SNR features that this drafter adds to its embeddings",
    "selector_": "DFlash 2's candidate selector",
    "d2t": "to know whether this d2t holds offsets or tokens; use the safetensors version",
}
_LAYER = re.compile(r"blk\.(\d{1,4})\.(.+)")


def matches(config: Config) -> bool:
    """Whether it is the metadata of a GGUF file."""
    return isinstance(reading.found_at(config, "general.architecture"), str)


def view(config: Config, tensors: TensorSource, where: str) -> TensorSource:
    """Our names; vectors, stored in float32, in the dtype of the matrices."""
    for start, needs in FOREIGN.items():
        if any(name.startswith(start) for name in tensors.infos):
            raise UnsupportedError(f"{where}: holds {start}*, which needs {needs}")
    made: dict[str, Made] = {}
    for name, entry in unchanged(tensors).items():
        ours = _renamed(name)
        if ours in made:
            refuse(where, f"{name} is there under two names")
        made[ours] = entry
    return MappedTensors(tensors, _one_dtype(made))


def resolve(config: Config, infos: Infos, where: str) -> DrafterConfig:
    """State every convention. Raises CheckpointError for what is missing or contradictory."""
    kind = reading.found_at(config, "general.architecture")
    if kind not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        raise UnsupportedError(f"{where}: general.architecture {short(kind)}; {known} are read")
    keys: dict[str, tuple[str, ...]] = {k: (f"{kind}.{theirs}",) for k, theirs in NAMES.items()}
    keys["mask_token_id"] += ("tokenizer.ggml.mask_token_id",)
    flat = reading.flatten(config, keys, REQUIRED, where)
    reading.check_whole(flat, (*reading.SHAPE[:5], "head_dim"), where)
    if flat.get("scaling") not in (None, "none"):
        raise UnsupportedError(f"{where}: rope scaling {short(flat['scaling'])} is not read here")
    for name in ("rotated", "value_dim"):
        if flat.get(name) not in (None, reading.head_dim(flat)):
            raise UnsupportedError(
                f"{where}: {keys[name][0]} {short(flat[name])} is not read; it must be the size "
                f"of a head, {reading.head_dim(flat)}"
            )
    flat["vocab_size"] = _vocabulary(config, flat, infos, where)
    reading.check_whole(flat, ("vocab_size",), where)
    flat |= _heads(flat, infos, where) | {"layer_types": _layer_types(flat, where)}
    stored = reading.layer_ids(flat, where)
    flat["target_layer_ids"] = [i - 1 for i in stored]
    if min(stored) < 0:
        refuse(where, f"{kind}.target_layers has {min(stored)}, expected 0 or more")
    if "sample_from_anchor" not in flat and flat["markov_rank"]:
        refuse(where, f"missing {kind}.sample_from_anchor, which a Markov head does not tell")
    causal = flag(flat, "causal", where) if "causal" in flat else None
    return block.resolve_block(
        flat,
        infos,
        where,
        slot=0 if flag(flat, "sample_from_anchor", where) else 1,
        rope=read_rope(flat, where),
        masks=reading.masks(
            flat,
            where,
            sliding_causal=causal,
            full_causal=bool(causal),
            decider=f"{kind}.attention.causal",
        ),
        dtype=_dtype(infos),
    )


def _renamed(name: str) -> str:
    if match := _LAYER.fullmatch(name):
        number, rest = match.groups()
        return f"layers.{number}.{LAYER_TENSORS.get(rest, rest)}"
    return TENSORS.get(name, name)


def _dtype(infos: Infos) -> str:
    stored = infos["fc.weight"].dtype if "fc.weight" in infos else "F32"
    return str(DTYPES[stored][1]).rpartition(".")[2]


def _one_dtype(made: Mapping[str, Made]) -> dict[str, Made]:
    fc = made.get("fc.weight")
    cast: dict[str, Made] = {}
    for name, entry in made.items():
        info = entry.info
        if name == "confidence_head.proj.weight" and len(info.shape) == 1:
            info = replace(info, shape=(1, *info.shape))
        if fc is not None and info.dtype == "F32" and len(entry.info.shape) == 1:
            info = replace(info, dtype=fc.info.dtype)
        cast[name] = replace(entry, info=info, make=partial(_as, info))
    return cast


def _as(info: Any, array: mx.array) -> mx.array:
    return array.reshape(info.shape).astype(DTYPES[info.dtype][1])


def _vocabulary(config: Config, flat: Config, infos: Infos, where: str) -> Any:
    """The number of tokens, from every place that tells it."""
    told: dict[str, Any] = {"vocab_size": flat.get("vocab_size")}
    told["tokens"] = reading.found_at(config, "tokenizer.ggml.tokens.strings")
    for name in ("embed_tokens.weight", "lm_head.weight", "markov_head.markov_w1.weight"):
        told[name] = infos[name].shape[0] if name in infos and infos[name].shape else None
    stated = {key: value for key, value in told.items() if value is not None}
    if not stated:
        refuse(where, "nothing tells the size of the vocabulary (vocab_size, tokenizer, tables)")
    if len(set(stated.values())) != 1:
        sizes = ", ".join(f"{key} {value}" for key, value in stated.items())
        refuse(where, f"the sizes of the vocabulary differ: {sizes}")
    return next(iter(stated.values()))


def _heads(flat: Config, infos: Infos, where: str) -> dict[str, Any]:
    """The heads, which only the tensors tell."""
    table = infos.get("markov_head.markov_w1.weight")
    proj = infos.get("confidence_head.proj.weight")
    rank = table.shape[-1] if table is not None and len(table.shape) == 2 else 0
    widths = {flat["hidden_size"]: False, flat["hidden_size"] + rank: bool(rank)}
    if proj is not None and (not proj.shape or proj.shape[-1] not in widths):
        expected = " or ".join(map(str, widths))
        refuse(where, f"conf_proj has shape {list(proj.shape)}, expected {expected} columns")
    return {
        "markov_rank": rank,
        "enable_confidence_head": proj is not None,
        "confidence_head_with_markov": proj is not None and widths[proj.shape[-1]],
    }


def _layer_types(flat: Config, where: str) -> list[str] | None:
    pattern, window = flat.get("pattern"), flat.get("sliding_window")
    if pattern is None:
        if window:
            refuse(where, "missing attention.sliding_window_pattern; a sliding_window is there")
        return None
    if not isinstance(pattern, list) or not all(isinstance(p, bool) for p in pattern):
        raise UnsupportedError(
            f"{where}: sliding_window_pattern {short(pattern)} is not read; a "
            "list of true and false is"
        )
    return ["sliding_attention" if p else "full_attention" for p in pattern]
