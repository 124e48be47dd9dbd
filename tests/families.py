"""One tiny random model per target family, of mlx-lm's own class, float32."""

from __future__ import annotations

import functools
import importlib
import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path

from .fakes import Plain, RecordingTarget, plain

VOCAB = 48
WINDOW = 6
_BASE = {
    "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}  # fmt: skip
_MOE = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": True,
}  # fmt: skip
_DELTA = {
    "linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
    "partial_rotary_factor": 0.5, "num_hidden_layers": 4,
}  # fmt: skip
_MAMBA = {
    "mamba_num_heads": 2, "mamba_head_dim": 8, "ssm_state_size": 8, "conv_kernel": 4,
    "n_groups": 1, "mamba_proj_bias": False, "attention_bias": False, "mlp_bias": False,
    "use_bias": False, "use_conv_bias": True, "layer_norm_epsilon": 1e-5,
    "hybrid_override_pattern": ["M", "-", "*", "M"],
}  # fmt: skip
_SHORT_CONV = {
    "norm_eps": 1e-6, "conv_bias": True, "conv_L_cache": 3, "block_dim": 32,
    "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3,
}  # fmt: skip
_WINDOWS = ["sliding_attention", "full_attention"]

# family -> what its config has beside the common values; "text_config" nests all of it
FAMILIES: dict[str, dict] = {
    "qwen3": {},
    "llama": {"tie_word_embeddings": True},
    "mistral3": {"text_config": {"model_type": "mistral"}},
    "smollm3": {"no_rope_layer_interval": 2, "tie_word_embeddings": True},
    "gemma3_text": {"sliding_window": WINDOW, "sliding_window_pattern": 2,
                    "query_pre_attn_scalar": 16, "rope_local_base_freq": 100.0},
    "gemma4_text": {"sliding_window": WINDOW, "layer_types": [*_WINDOWS, *_WINDOWS],
                    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "global_head_dim": 32,
                    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB,
                    "tie_word_embeddings": True, "final_logit_softcapping": 10.0},
    "gpt_oss": {"sliding_window": WINDOW, "layer_types": _WINDOWS, "num_local_experts": 4,
                "num_experts_per_tok": 2},
    "muse_glimmer": {"sliding_window": WINDOW, "layer_types": _WINDOWS, "output_multiplier": 1.0},
    "qwen3_moe": _MOE,
    "qwen3_5": {"text_config": _DELTA},
    "qwen3_5_moe": {"text_config": _DELTA | _MOE},
    "qwen3_next": _DELTA | _MOE,
    "lfm2": _SHORT_CONV,
    "nemotron_h": _MAMBA,
}  # fmt: skip

# families of which nothing is known to the package, to see what works by default
OTHERS: dict[str, dict] = {
    "falcon_h1": {"mamba_d_ssm": 16, "mamba_d_head": 8, "mamba_n_heads": 2, "mamba_d_state": 8,
                  "embedding_multiplier": 1.0, "lm_head_multiplier": 1.0},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 0,
              "expert_layer_period": 2, "mamba_d_conv": 4, "mamba_d_state": 8, "mamba_expand": 1,
              "num_experts": 2, "num_experts_per_tok": 1},
    "llama4": {"text_config": {"attention_chunk_size": 8, "num_hidden_layers": 4,
                               "interleave_moe_layer_step": 2, "intermediate_size_mlp": 48,
                               "num_local_experts": 2, "num_experts_per_tok": 1,
                               "attention_bias": False, "rope_scaling": None, "use_qk_norm": True}},
    "mamba": {"state_size": 8, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True,
              "time_step_rank": 4, "intermediate_size": 32, "num_hidden_layers": 2},
    "recurrent_gemma": {"attention_window_size": WINDOW, "lru_width": 32, "conv1d_width": 4,
                        "block_types": ["recurrent", "attention"], "logits_soft_cap": 30.0,
                        "embeddings_scale_by_sqrt_dim": True, "attention_bias": False},
}  # fmt: skip


def config_of(family: str, **changes) -> dict:
    """A config.json, with the language model's part nested where the family nests it."""
    own = (FAMILIES | OTHERS)[family]
    kind = {"model_type": family}
    if family == "lfm2" and "hidden_size" in changes:
        changes["block_dim"] = changes["hidden_size"]
    if "text_config" not in own:
        return _BASE | own | kind | changes
    return kind | {"text_config": _BASE | kind | own["text_config"] | changes}


def family_target(family: str, seed: int = 0, **changes) -> RecordingTarget:
    """A target of the family; every parameter is random, vectors around their initial value."""
    config = config_of(family, **changes)
    module = importlib.import_module(f"mlx_lm.models.{family}")
    mx.random.seed(seed)  # some classes draw their initial values
    model = module.Model(module.ModelArgs.from_dict(config))
    model.eval()
    numbers = np.random.default_rng(seed)
    # with a tied table, what a token says of itself would drown the layers' word
    table = 0.3 if (config.get("text_config") or config).get("tie_word_embeddings") else 4.0

    def weight(path, old):
        noise = numbers.standard_normal(old.shape).astype(np.float32)
        if old.ndim < 2:
            return old + 0.1 * mx.array(noise)
        gain = table if "embed" in path or "lm_head" in path else 1.5
        return mx.array(noise * (gain / old.shape[-1] ** 0.5))

    model.update(tree_map_with_path(weight, model.parameters()))
    mx.eval(model.parameters())
    return RecordingTarget(model, config, family)


def quantizable(_, module) -> bool:
    """Whether groups of 32 fit, for `nn.quantize`."""
    return hasattr(module, "to_quantized") and module["weight"].shape[-1] % 32 == 0


def save_target(target: RecordingTarget, folder: Path, tokenizer: Path) -> Path:
    """Write the target as a folder that `load` reads, with another one's tokenizer files."""
    folder.mkdir()
    for file in tokenizer.glob("*token*"):
        shutil.copy(file, folder)
    (folder / "config.json").write_text(json.dumps(target.config))
    weights = dict(tree_flatten(target.model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


@functools.cache
def family_run(family: str, count: int, length: int = 5, seed: int = 0, **changes) -> Plain:
    """A target and its plain greedy continuation of a prompt, without a near-tie."""
    target = family_target(family, seed, **changes)
    prompt = np.random.default_rng(seed).integers(0, VOCAB, length).tolist()
    return target, plain(target, prompt, count)
