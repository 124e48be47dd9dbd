"""The Qwen3.5-native fork of DeepSpec (Ornith): gated queries, partial rotary, norms less one.

Here `partial_rotary_factor` is real (in DeepSpec's own configs it is a copy of the target's): the
leading share of a head is rotated. Every norm weight is stored as its distance from one.
"""

from __future__ import annotations

from dataclasses import replace
from reprlib import repr as short

import mlx.core as mx

from dspark_mlx.config import DrafterConfig
from dspark_mlx.config_rules import is_positive
from dspark_mlx.errors import UnsupportedError

from . import block, reading
from .mapping import MappedTensors, unchanged, with_draft_ids
from .reading import Config, Infos, flag, refuse
from .rope import read_rope
from .tensors import TensorSource

NAME = "Qwen3.5-native DSpark"
ARCHITECTURE, GATE = "Qwen35DSparkModel", "enable_qwen35_gated_q_proj"

KEYS = block.KEYS | reading.level((GATE, "sample_from_anchor", "dflash_query_causal")) | {
    "partial": ("partial_rotary_factor", "rope_parameters.partial_rotary_factor"),
}  # fmt: skip
REQUIRED = (*block.REQUIRED, "num_target_layers", "partial")


def matches(config: Config) -> bool:
    """Whether the config bears the fork's architecture."""
    return reading.one_architecture(config) == ARCHITECTURE


def view(config: Config, tensors: TensorSource, where: str) -> TensorSource:
    """DeepSpec's names and norms."""
    made = with_draft_ids(unchanged(tensors), where)
    norms = [name for name in made if name.rpartition(".")[0].endswith("norm")]
    return MappedTensors(tensors, made | {n: replace(made[n], make=_plus_one) for n in norms})


def resolve(config: Config, infos: Infos, where: str) -> DrafterConfig:
    """State every convention. Raises CheckpointError for what is missing or contradictory."""
    reading.refuse_quantized(config, where)
    flat = reading.flatten(config, KEYS, REQUIRED, where)
    reading.check_whole(flat, (*reading.SHAPE[:5], "head_dim"), where)
    reading.check_granted(flat, reading.GRANTED, where)
    block.check_depth(flat, where)
    if not flag(flat, GATE, where):
        raise UnsupportedError(
            f"{where}: a {ARCHITECTURE} without {GATE} is not supported: forks differ in whether "
            "its norms are stored less one, and nothing in it says which it is"
        )
    causal = flag(flat, "dflash_query_causal", where)
    return block.resolve_block(
        flat,
        infos,
        where,
        slot=0 if flag(flat, "sample_from_anchor", where, default=True) else 1,
        rope=replace(read_rope(flat, where), rotary_dims=_rotated(flat, where)),
        masks=reading.masks(flat, where, sliding_causal=causal, full_causal=causal),
        attention_gate=True,
    )


def _rotated(flat: Config, where: str) -> int | None:
    share, dim = flat["partial"], reading.head_dim(flat)
    if not is_positive(share) or share > 1 or int(dim * share) % 2 or not int(dim * share):
        refuse(where, f"partial_rotary_factor is {short(share)}, expected an even part of {dim}")
    return None if share == 1 else int(dim * share)


def _plus_one(weight: mx.array) -> mx.array:
    return (weight.astype(mx.float32) + 1.0).astype(weight.dtype)
