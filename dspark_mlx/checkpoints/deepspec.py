"""DeepSpec's native packaging (method section 11): top-level keys, a copy of the target's config.

Tensor names are taken over as they are; the modules of `drafters` bear the same names. Forks
of it add a reduced vocabulary (`d2t`), windows, sinks, a causal block, another slot.
"""

from __future__ import annotations

from typing import Any

from dspark_mlx.config import DrafterConfig, RopeConfig
from dspark_mlx.errors import UnsupportedError

from . import block, reading
from .mapping import MappedTensors, unchanged, with_draft_ids
from .reading import SHAPE, Config, Infos, flag
from .rope import read_rope, theta
from .tensors import TensorSource

NAME = "DeepSpec native"

# architecture -> (kind, backbone form); DeepSpec's DFlash bears the same name, with rank 0
ARCHITECTURES = {
    "Qwen3DSparkModel": ("dspark", "qwen3"),
    "Gemma4DSparkModel": ("dspark", "gemma4"),
    "Qwen3Eagle3Model": ("eagle3", "qwen3"),
    "Gemma4Eagle3Model": ("eagle3", "gemma4"),
}

REQUIRED = {  # an Eagle3 config counts unrolled steps and has no mask
    "dspark": (*block.REQUIRED, "num_target_layers"),
    "eagle3": ("ttt_length", "target_layer_ids", "num_target_layers", *SHAPE),
}
GEMMA4 = (
    "attention_k_eq_v",
    "num_global_key_value_heads",
    "global_head_dim",
    "final_logit_softcapping",
    "hidden_activation",
    "enable_moe_block",
    "hidden_size_per_layer_input",
    "use_double_wide_mlp",
)
# NVIDIA's configs state some of it again in `dflash_config`; two values for one fact are refused
AGAIN = ("target_layer_ids", "mask_token_id", "block_size", "sample_from_anchor", "markov_rank",
         "attention_sink_bias")  # fmt: skip
KEYS = block.KEYS | reading.level((*GEMMA4, "enable_qwen35_gated_q_proj", "ttt_length")) | {
    name: (name, f"dflash_config.{name}") for name in AGAIN
} | {
    "dflash_query_causal": ("dflash_query_causal", "dflash_config.causal"),
    "sliding_window": ("sliding_window", "dflash_config.swa_window_size"),
    "use_swa": ("dflash_config.use_swa",),
}  # fmt: skip

# what a drafter may state, and the values that mean what its module takes for granted
GRANTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "qwen3": reading.GRANTED,
    "gemma4": {
        "attention_bias": (False,),
        "hidden_activation": ("gelu_pytorch_tanh",),
        "enable_moe_block": (False,),
        "hidden_size_per_layer_input": (0,),
        "use_double_wide_mlp": (False,),
    },
    "all": {"enable_qwen35_gated_q_proj": (False,)},
}


def matches(config: Config) -> bool:
    """Whether the config bears a DeepSpec architecture and none of another packaging's marks."""
    other = ("quantization_config", "hf_quant_config", "speculators_config")
    bears = reading.one_architecture(config) in ARCHITECTURES
    return bears and not any(config.get(mark) for mark in (*other, "speculators_model_type"))


def view(config: Config, tensors: TensorSource, where: str) -> TensorSource:
    """The tensors as they are, but for a vocabulary map."""
    return MappedTensors(tensors, with_draft_ids(unchanged(tensors), where))


def resolve(config: Config, infos: Infos, where: str) -> DrafterConfig:
    """State every convention of the checkpoint. Raises CheckpointError for what is missing."""
    kind, backbone = ARCHITECTURES[str(reading.one_architecture(config))]
    required = REQUIRED[kind]
    if kind == "dspark" and isinstance(config.get("dflash_config"), dict):
        required = block.REQUIRED  # NVIDIA's configs do not say how deep the target is
    flat = reading.flatten(config, KEYS, required, where)
    reading.check_whole(flat, SHAPE[:5] + SHAPE[6:], where)
    reading.check_granted(flat, GRANTED["all"] | GRANTED[backbone], where)
    block.check_depth(flat, where)
    if kind == "eagle3":
        return _eagle3(flat, infos, where, backbone)
    causal = flag(flat, "dflash_query_causal", where)
    form = {} if backbone == "qwen3" else _gemma4_form(flat, where)
    return block.resolve_block(
        flat,
        infos,
        where,
        slot=0 if flag(flat, "sample_from_anchor", where, default=True) else 1,
        rope=form.pop("rope") if form else read_rope(flat, where),
        masks=reading.masks(flat, where, sliding_causal=causal, full_causal=causal),
        backbone=backbone,
        **form,
    )


def _eagle3(flat: Config, infos: Infos, where: str, backbone: str) -> DrafterConfig:
    reading.check_whole(flat, ("ttt_length",), where)
    block.check_claims(flat, infos, where)
    if reading.masks(flat, where, sliding_causal=True, full_causal=False):
        raise UnsupportedError(f"{where}: an Eagle3 drafter with a window is not supported here")
    form = {} if backbone == "qwen3" else _gemma4_form(flat, where)
    fields: dict[str, Any] = {
        "kind": "eagle3",
        "backbone": backbone,
        **{key: flat[key] for key in SHAPE},
        "head_dim": reading.head_dim(flat),
        "block_size": flat["ttt_length"],
        "mask_token_id": None,
        "target_layer_ids": tuple(flat["target_layer_ids"]),
        "num_target_layers": flat["num_target_layers"],
        "rope": form.pop("rope") if form else read_rope(flat, where),
        **block.shared(flat, infos, where),
    }
    return DrafterConfig(**fields | form).checked(where)


# what Gemma4 configs mean when they name no rope parameters
GEMMA4_ROPE = {"rope_theta": 1e6, "partial_rotary_factor": 0.25}


def _gemma4_form(flat: Config, where: str) -> dict[str, Any]:
    """Every layer has the geometry of the target's full-attention layers (section 3.5)."""
    every = flat.get("rope_parameters")
    full = every.get("full_attention") if isinstance(every, dict) else None
    full = full if isinstance(full, dict) else GEMMA4_ROPE
    same = flag(flat, "attention_k_eq_v", where)
    kv_heads = flat.get("num_global_key_value_heads") if same else None
    partial = full.get("partial_rotary_factor", GEMMA4_ROPE["partial_rotary_factor"])
    return {
        "head_dim": flat.get("global_head_dim") or flat.get("head_dim"),
        "num_key_value_heads": kv_heads or flat["num_key_value_heads"],
        "rope": RopeConfig(theta(full.get("rope_theta"), where), partial=partial),
        "embedding_scale": flat["hidden_size"] ** 0.5,
        "logit_softcap": flat.get("final_logit_softcapping"),
        "values_are_keys": same,
    }
