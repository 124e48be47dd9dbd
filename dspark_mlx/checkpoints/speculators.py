"""The speculators library's dspark and dflash: nested layer config, taps named by layer input.

Id j of `aux_hidden_state_layer_ids` is entry j of hidden_states: the output of layer j - 1.
"""

from __future__ import annotations

from reprlib import repr as short
from typing import Any

from dspark_mlx.config import DrafterConfig
from dspark_mlx.config_rules import is_whole
from dspark_mlx.errors import UnsupportedError

from . import block, reading
from .mapping import MappedTensors, unchanged, with_draft_ids
from .reading import HEADS, LAYERS, SHAPE, Config, Infos, flag, refuse
from .rope import read_rope
from .tensors import TensorSource

NAME = "speculators"
LAYER = "transformer_layer_config."
DROPPED = "verifier_"  # copies of the target's norm and head that training needs

LAYER_KEYS = reading.level((*SHAPE, *LAYERS, "model_type", "hc_mult"), LAYER)
TOP = ("block_size", "mask_token_id", "draft_vocab_size", "sample_from_anchor",
       "sliding_window_non_causal", "target_hidden_size", "fc_norm", "norm_before_fc",
       "norm_before_residual", "norm_output", "use_heterogeneous_kv", "shift_label",
       "pure_draft_prefix_len", *HEADS)  # fmt: skip
KEYS = LAYER_KEYS | reading.level(TOP) | reading.DTYPE | {
    "target_layer_ids": ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"),
    "output_ids": ("target_layer_ids", "dflash_config.target_layer_ids"),
    "algorithm": ("speculators_model_type", "speculators_config.algorithm"),
    "proposals": ("speculators_config.proposal_methods",),
}  # fmt: skip
REQUIRED = (*block.REQUIRED, "algorithm", "model_type")

# algorithm -> slot where nothing in the file decides (None: it has to)
ALGORITHMS: dict[str, int | None] = {"dspark": None, "dflash": 1}
GRANTED = reading.GRANTED | {
    "model_type": ("qwen3",),
    "fc_norm": (False,),
    "norm_before_fc": (False,),
    "norm_output": (False,),
    "use_heterogeneous_kv": (False,),
    "shift_label": (False,),
    "pure_draft_prefix_len": (1,),
    "hc_mult": (1,),
}


def bears_marks(config: Config) -> bool:
    """Whether the config is of the speculators library."""
    return bool(config.get("speculators_model_type") or config.get("speculators_config"))


def algorithm_of(config: Config) -> Any:
    """The algorithm that the config names."""
    return config.get("speculators_model_type") or reading.found_at(
        config, "speculators_config.algorithm"
    )


def matches(config: Config) -> bool:
    """Whether it is a speculators config, of any algorithm but those read or refused elsewhere."""
    marks = ("selector_rank", "conv_kernel_size")
    return (
        bears_marks(config)
        and algorithm_of(config) not in ("eagle3", "dflash2")
        and not any(config.get(mark) for mark in marks)
    )


def view(config: Config, tensors: TensorSource, where: str) -> TensorSource:
    """DeepSpec's names, without the verifier's; the vocabulary map becomes absolute."""
    made = {k: v for k, v in unchanged(tensors).items() if not k.startswith(DROPPED)}
    return MappedTensors(tensors, with_draft_ids(made, where))


def resolve(config: Config, infos: Infos, where: str) -> DrafterConfig:
    """State every convention. Raises CheckpointError for what is missing or contradictory."""
    reading.refuse_quantized(config, where)
    algorithm = algorithm_of(config)
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        known = ", ".join((*ALGORITHMS, "eagle3"))
        raise UnsupportedError(
            f"{where}: the algorithm {short(algorithm)} is not supported; supported: {known}"
        )
    flat = reading.flatten(config, KEYS, REQUIRED, where)
    reading.check_whole(flat, (*SHAPE[:5], "block_size"), where)
    reading.check_granted(flat, GRANTED, where)
    check_width(flat, where)
    if algorithm == "dflash" and flat.get("markov_rank"):
        refuse(where, f"markov_rank is {short(flat['markov_rank'])}, but the algorithm is dflash")
    causal = None
    if "sliding_window_non_causal" in flat:
        causal = not flag(flat, "sliding_window_non_causal", where)
    flat["target_layer_ids"] = tapped(flat, where)
    return block.resolve_block(
        flat,
        infos,
        where,
        slot=_slot(flat, ALGORITHMS[algorithm], where),
        rope=read_rope(flat, where, scaled=True),
        masks=reading.masks(flat, where, sliding_causal=causal, full_causal=False),
    )


def check_width(flat: Config, where: str) -> None:
    """Raise UnsupportedError for a target of another width than the drafter's."""
    width = flat.get("target_hidden_size")
    if width is not None and width != flat["hidden_size"]:
        raise UnsupportedError(
            f"{where}: target_hidden_size {short(width)} beside hidden_size "
            f"{flat['hidden_size']} is not supported yet; they must be equal"
        )


def tapped(flat: Config, where: str) -> list[int]:
    """The taps as outputs of layers."""
    ids = reading.layer_ids(flat, where)
    if min(ids) < 0:
        refuse(where, f"aux_hidden_state_layer_ids has {min(ids)}, expected 0 (embedding) or more")
    outputs = [j - 1 for j in ids]
    if flat.get("output_ids", outputs) != outputs:
        found = short(flat["output_ids"])
        refuse(where, f"target_layer_ids is {found}, but aux_hidden_state_layer_ids mean {outputs}")
    return outputs


def speculative_tokens(flat: Config, where: str) -> int | None:
    """How many tokens the default proposal method drafts, where the file says so."""
    methods = flat.get("proposals")
    if methods is None:
        return None
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], dict):
        refuse(where, f"speculators_config.proposal_methods is {short(methods)}, expected objects")
    count = methods[0].get("speculative_tokens")
    if count is not None and not is_whole(count):
        refuse(where, f"speculative_tokens is {short(count)}, expected a positive integer")
    return count


def _slot(flat: Config, default: int | None, where: str) -> int:
    block_size, tokens = flat["block_size"], speculative_tokens(flat, where)
    by_count = {block_size: 0, block_size - 1: 1}.get(tokens or -1)
    if "sample_from_anchor" in flat:
        slot: int | None = 0 if flag(flat, "sample_from_anchor", where) else 1
    else:
        slot = default if by_count is None else by_count
    if slot is None:
        refuse(
            where,
            f"missing sample_from_anchor, and speculative_tokens {tokens} with block_size "
            f"{block_size} does not tell: add true (block 7 drafts 7) or false (block 7 drafts 6)",
        )
    if tokens is not None and tokens > block_size - slot:
        refuse(
            where,
            f"speculative_tokens is {tokens}, but block_size {block_size} predicting from slot "
            f"{slot} gives {block_size - slot}",
        )
    return slot
