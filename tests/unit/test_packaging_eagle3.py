"""Eagle3 as the speculators library trains it, against the plain forward of numpy_forward."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest

from .. import packagings as pack
from ..numpy_forward import Facts, draft_eagle3
from .test_packaging_maths import CONTEXTS, LLAMA3, features_of, floats, ours
from .test_packagings import opened

EAGLE3 = {  # config changes, layer changes -> facts
    "qwen3": ({}, {}, {}),
    "llama": ({}, {"model_type": "llama"}, {"norms_qk": False}),
    "norm_before_residual": ({"norm_before_residual": True}, {}, {"before_residual": True}),
    "norm_before_fc": ({"norm_before_fc": True}, {}, {"feature_norm": "joint"}),
    "fc_norm": ({"fc_norm": True}, {}, {"feature_norm": "each"}),
    "norm_output": ({"norm_output": True}, {}, {"output_normed": True}),
    "window": (
        {},
        {"layer_types": ["sliding_attention"], "sliding_window": 5, "use_sliding_window": True},
        {"window": 5},
    ),
    "llama3 rope": (
        {},
        {"model_type": "llama", "rope_parameters": LLAMA3 | {"rope_theta": 1e4}},
        {"norms_qk": False, "scaling": LLAMA3},
    ),
    "all of Red Hat's": (
        {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
        {"model_type": "llama", "layer_types": ["sliding_attention"], "sliding_window": 5,
         "use_sliding_window": True},
        {"norms_qk": False, "before_residual": True, "feature_norm": "joint",
         "output_normed": True, "window": 5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("case", EAGLE3)
def test_speculators_eagle3(tmp_path, case, taps):
    top, layer, does = EAGLE3[case]
    config, tensors = pack.native("eagle3")
    numbers, rows = np.random.default_rng(5), list(range(3, 320, 9))
    config |= {"target_layer_ids": config["target_layer_ids"][:taps]}
    tensors["fc.weight"] = tensors["fc.weight"][:, : 64 * taps]
    extra = {"joint": {"input_norm.weight": 64 * taps},
             "each": {f"fc_norm.{i}.weight": 64 for i in range(taps)}}  # fmt: skip
    for name, size in extra.get(does.get("feature_norm"), {}).items():
        tensors[name] = mx.array(1 + 0.3 * numbers.standard_normal(size).astype(np.float32))
    if not does.get("norms_qk", True):
        tensors = pack.without(tensors, "layers.0.self_attn.q_norm", "layers.0.self_attn.k_norm")
    packed, kept = pack.eagle3(config, tensors, rows)
    packed["transformer_layer_config"] |= layer
    found, drafter = opened(pack.write(tmp_path / "d", packed | top, kept), tensors)
    assert (found.kind, found.draft_vocab_size, len(found.target_layer_ids)) == (
        "eagle3", len(rows), taps)  # fmt: skip
    weights = floats(tensors | pack.reduced(tensors, rows, 320)) | {"draft_ids": np.array(rows)}
    facts = Facts(**does)
    for length in CONTEXTS:
        features, following = features_of(length, taps), list(range(5, 5 + length))
        cuts = () if length < 3 else (2, length // 2)
        tokens, logits, _ = ours(drafter, features, following, following[-1], cuts)
        wide = [f.astype(np.float64) for f in features]
        want, rows_ = draft_eagle3(weights, facts, wide, following, 7)
        np.testing.assert_allclose(logits, rows_, atol=1e-4, rtol=0)
        assert tokens == want
    for name in [n for n in does if n not in ("norms_qk",)]:
        plain = dataclasses.replace(facts, **{name: getattr(Facts(), name)})
        other = draft_eagle3(weights, plain, wide, following, 7)[1]
        assert np.abs(other - rows_).max() > 1e-2, name


def gemma4_eagle3():
    """A config and random tensors in the form of DeepSpec's Eagle3 for a Gemma4 target."""
    config, _ = pack.native("dspark-gemma4")
    for key in ("block_size", "mask_token_id", *pack.HEADS):
        config.pop(key, None)
    config |= {"architectures": ["Gemma4Eagle3Model"], "ttt_length": 7, "num_hidden_layers": 1,
               "layer_types": ["full_attention"]}  # fmt: skip
    numbers, at = np.random.default_rng(3), "layers.0."
    shapes = {
        "embed_tokens": (320, 64), "lm_head": (320, 64), "fc": (64, 320), "norm": (64,),
        **{f"{at}{name}": (64,) for name in (
            "hidden_norm", "input_layernorm", "post_attention_layernorm",
            "pre_feedforward_layernorm", "post_feedforward_layernorm")},
        f"{at}self_attn.q_proj": (128, 128), f"{at}self_attn.k_proj": (32, 128),
        f"{at}self_attn.o_proj": (64, 128), f"{at}self_attn.q_norm": (32,),
        f"{at}self_attn.k_norm": (32,), f"{at}mlp.gate_proj": (128, 64),
        f"{at}mlp.up_proj": (128, 64), f"{at}mlp.down_proj": (64, 128),
    }  # fmt: skip
    tensors = {f"{at}layer_scalar": mx.array([0.9])}
    for name, shape in shapes.items():
        values = numbers.standard_normal(shape) / (shape[-1] ** 0.5 if len(shape) == 2 else 4)
        values = values if len(shape) == 2 else 1 + values
        tensors[f"{name}.weight"] = mx.array(values.astype(np.float32))
    return config, tensors


def test_deepspec_eagle3_in_gemma4_form(tmp_path):
    config, tensors = gemma4_eagle3()
    found, drafter = opened(pack.write(tmp_path / "d", config, tensors), tensors)
    assert (found.kind, found.backbone, found.head_dim) == ("eagle3", "gemma4", 32)
    facts = Facts(heads=4, kv_heads=1, dim=32, layers=1, theta=1e5, partial=0.25, gemma=True,
                  embedding_scale=8.0, softcap=12.0)  # fmt: skip
    weights = floats(tensors)
    for length in CONTEXTS:
        features, following = features_of(length), list(range(5, 5 + length))
        tokens, logits, _ = ours(drafter, features, following, following[-1])
        wide = [f.astype(np.float64) for f in features]
        want, rows = draft_eagle3(weights, facts, wide, following, 7)
        np.testing.assert_allclose(logits, rows, atol=1e-4, rtol=0)
        assert tokens == want
    for change in ({"partial": 1.0}, {"softcap": None}):
        other = draft_eagle3(weights, dataclasses.replace(facts, **change), wide, following, 7)[1]
        assert np.abs(other - rows).max() > 1e-2, change
