"""A corpus of damaged and contradictory drafters: each one line that says what is wrong."""

import json
import struct

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx.checkpoints import open_drafter
from dspark_mlx.drafters.weights import load_drafter
from dspark_mlx.errors import CheckpointError, UnsupportedError

from .. import gguf_writer as writer
from .. import packagings as pack
from .test_packagings import nested

ROWS = [2, 4, 5, 17, 80, 81, 200, 319]
FORMS = ("zlab", "speculators", "eagle3", "specforge", "lfm2", "nvidia", "ornith")
LAYER = "transformer_layer_config."
FIRST = "layers.0.mlp.up_proj."


def form_of(name, rows=None):
    config, tensors = pack.native("eagle3" if name == "eagle3" else "dspark-vanilla")
    options = {"rows": rows} if rows else {}
    return getattr(pack, name)(config, tensors, **options)


def refusal(folder):
    """The one line with which opening and loading a folder ends."""
    with pytest.raises((CheckpointError, UnsupportedError)) as error:
        source = open_drafter(folder)
        with source.tensors:
            load_drafter(source)
    line = str(error.value)
    assert "\n" not in line and 20 < len(line) < 1500, line
    return line


# packaging, dotted key, value (None removes), what the line says
CONFIGS = [
    ("zlab", "dflash_config.target_layer_ids", [1, 2, 4, 5, 7], "reach the final layer"),
    ("zlab", "dflash_config.target_layer_ids", [-2, 2, 4, 5, 6], "integers from -1 on"),
    ("zlab", "dflash_config.target_layer_ids", [6, 5, 4, 2, 1], "strictly increasing"),
    ("zlab", "dflash_config.target_layer_ids", ["1"], "expected a list of integers"),
    ("zlab", "dflash_config.mask_token_id", -1, "mask_token_id is -1"),
    ("zlab", "dflash_config.mask_token_id", 320, "outside the vocabulary"),
    ("zlab", "dflash_config", None, "missing dflash_config.target_layer_ids"),
    ("zlab", "dflash_config", [1], "missing dflash_config.target_layer_ids"),
    ("zlab", "mask_token_id", 9, "dflash_config.mask_token_id is 3, but mask_token_id is 9"),
    ("zlab", "target_layer_ids", [1, 2], "but target_layer_ids is [1, 2]"),
    ("zlab", "dflash_config.block_size", 16, "block_size is 16, but block_size is 7"),
    ("zlab", "block_size", 1, "predict_from_slot is 1"),
    ("zlab", "layer_types", ["sliding_attention"] * 2, "there is no sliding_window"),
    ("zlab", "layer_types", ["linear_attention"] * 2, "are not supported yet"),
    ("zlab", "layer_types", ["full_attention"], "1 entries for 2 layers"),
    ("zlab", "markov_rank", 16, "in a DFlashDraftModel config"),
    ("zlab", "output_multiplier", 0, "output_multiplier is 0"),
    ("zlab", "final_logit_softcapping", "30", "final_logit_softcapping is '30'"),
    ("zlab", "is_causal", "no", "is_causal is 'no'"),
    ("zlab", "quantization_config", {"quant_method": "fp8"}, "quantized with 'fp8'"),
    ("zlab", "rope_scaling", {"rope_type": "dynamic", "factor": 2.0}, "rope type 'dynamic'"),
    ("zlab", "rope_scaling", {"rope_type": "yarn", "factor": 2.0}, "missing original_max"),
    ("zlab", "rope_scaling", {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0,
                              "original_max_position_embeddings": 64}, "attention_factor 1.0"),
    ("zlab", "rope_scaling", {"rope_type": "yarn", "factor": 4.0, "truncate": False,
                              "original_max_position_embeddings": 64}, "truncate False"),
    ("zlab", "rope_parameters", {"partial_rotary_factor": 0.25, "rope_theta": 10000.0},
     "partial_rotary_factor is not supported"),
    ("zlab", "rope_scaling", {"rope_type": "linear", "factor": "x"}, "factor is 'x'"),
    ("zlab", "num_hidden_layers", 3, "2 entries for 3 layers"),
    ("speculators", "speculators_model_type", "medusa", "algorithm 'medusa' is not supported"),
    ("speculators", "speculators_config.algorithm", "dflash", "speculators_config.algorithm is"),
    ("speculators", "sample_from_anchor", False, "speculative_tokens is 7, but block_size 7"),
    ("speculators", "aux_hidden_state_layer_ids", [-1, 2, 5], "expected 0 (embedding) or more"),
    ("speculators", "aux_hidden_state_layer_ids", [2, 3, 5], "fc.weight has shape"),
    ("speculators", "target_layer_ids", [2, 3, 5, 6, 7], "aux_hidden_state_layer_ids mean [1, 2"),
    ("specforge", "eagle_aux_hidden_state_layer_ids", [1, 2, 4, 5, 6], "expected [2, 3, 5, 6, 7]"),
    ("lfm2", "has_lm_head", True, "has_lm_head is true, but the file holds no tensors for it"),
    ("speculators", "draft_vocab_size", 100, "the file holds no d2t map"),
    ("speculators", "draft_vocab_size", 0, "draft_vocab_size is 0"),
    ("speculators", "markov_head_type", "gated", "lacks markov_head.gate_proj.weight"),
    ("speculators", "markov_head_type", "transformer", "'transformer' is not supported"),
    ("speculators", "markov_rank", 0, "the file holds a Markov head"),
    ("speculators", "confidence_head_with_markov", False, "confidence_head.proj.weight has shape"),
    ("speculators", "enable_confidence_head", False, "not part of such a drafter: confidence"),
    ("speculators", f"{LAYER}model_type", "llama", "model_type 'llama' is not supported"),
    ("speculators", f"{LAYER}hc_mult", 4, "hc_mult 4 is not supported"),
    ("speculators", f"{LAYER}hidden_size", "64", "hidden_size is '64'"),
    ("speculators", f"{LAYER}hidden_size", 2**40, "hidden_size is"),
    ("speculators", "target_hidden_size", 128, "target_hidden_size 128 beside hidden_size 64"),
    ("speculators", "speculators_config.proposal_methods", [7], "expected objects"),
    ("speculators", "transformer_layer_config", "qwen3", "missing transformer_layer_config.hid"),
    ("eagle3", "norm_before_fc", True, "lacks input_norm.weight"),
    ("eagle3", "fc_norm", True, "lacks fc_norm.0.weight"),
    ("eagle3", "norm_output", "yes", "norm_output is 'yes'"),
    ("eagle3", f"{LAYER}model_type", "llama", "not part of such a drafter: layers.0.self_attn"),
    ("eagle3", f"{LAYER}num_hidden_layers", 2, "1 entries for 2 layers"),
    ("specforge", "dflash_config.projector_type", "mlp", "not a drafter of a known packaging"),
    ("specforge", "num_key_value_heads", 4, "k_proj.weight has shape"),
    ("specforge", "num_attention_heads", 3, "cannot be shared"),
    ("specforge", "rope_theta", -1, "rope_theta is -1"),
    ("specforge", "rope_parameters", {"rope_theta": 5.0}, "but rope_parameters has 5.0"),
    ("lfm2", "rope_is_neox_style", "false", "rope_is_neox_style is 'false'"),
    ("lfm2", "dflash_config.num_target_layers", 6, "reach the final layer"),
    ("lfm2", "markov_head_type", "rnn", "lacks markov_head.joint_proj.weight"),
    ("nvidia", "quantization_config.quant_method", "awq", "quantized with 'awq' are not read"),
    ("ornith", "enable_qwen35_gated_q_proj", False, "nothing in it says which it is"),
    ("ornith", "partial_rotary_factor", 0.2, "expected an even part of 16"),
    ("ornith", "partial_rotary_factor", 1.5, "expected an even part of 16"),
    ("ornith", "rope_parameters.partial_rotary_factor", 0.5, "partial_rotary_factor is 0.25, but"),
    ("nvidia", "quantization_config.quant_algo", "FP8", "quant_algo 'FP8' is not read"),
    ("nvidia", "quantization_config", None, "not part of such a drafter: layers.0.mlp"),
    ("nvidia", "dflash_query_causal", 1, "dflash_query_causal is 1"),
    ("nvidia", "has_lm_head", "no", "has_lm_head is 'no'"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "key", "value", "expected"), CONFIGS)
def test_config(tmp_path, form, key, value, expected):
    config, tensors = form_of(form)
    folder = pack.write(tmp_path / "d", nested(config, key, value), tensors)
    line = refusal(folder)
    assert expected in line, line


def offsets(values, dtype=mx.int64):
    return mx.array(np.array(values) - np.arange(len(values)), dtype=dtype)


# packaging, tensors changed (None: removed), what the line says
TENSORS = [
    ("speculators", {"d2t": offsets([2, 4, 5, 17, 80, 81, 200, 320])}, "do not name the same"),
    ("speculators", {"d2t": offsets([2, 4, 5, 17, 80, 81, 200, 320]), "t2d": None},
     "draft_ids has 320, outside 0..319"),
    ("speculators", {"d2t": offsets([-2, 4, 5, 17, 80, 81, 200, 319])}, "token -2"),
    ("speculators", {"d2t": offsets([4, 4, 5, 17, 80, 81, 200, 319])}, "do not name the same"),
    ("speculators", {"d2t": offsets([2, 4, 5, 17, 80, 82, 200, 319])}, "do not name the same"),
    ("speculators", {"d2t": mx.array(ROWS), "t2d": None}, "draft_ids has 326, outside"),
    ("speculators", {"d2t": offsets([4, 4, 5, 17, 80, 81, 200, 319]), "t2d": None}, "token"),
    ("speculators", {"d2t": mx.zeros((8,))}, "d2t is F32 [8], expected a list of integers"),
    ("speculators", {"d2t": offsets(ROWS[:7])}, "draft_ids has shape [7], expected [8]"),
    ("speculators", {"d2t": None}, "t2d without the d2t"),
    ("speculators", {"d2t": None, "t2d": None}, "the file holds no d2t map"),
    ("speculators", {"lm_head.weight": mx.zeros((320, 64))}, "lm_head.weight has shape [320, 64]"),
    ("speculators", {"lm_head.weight": None}, "needs a head of the drafter's own"),
    ("speculators", {"fusion_weights": mx.zeros((2, 5))}, "fusion_weights"),
    ("zlab", {"fc.weight": mx.full((64, 320), float("nan"))}, "NaN or infinite values in fc"),
    ("zlab", {"markov_head.markov_w1.weight": mx.zeros((320, 4))}, "holds a Markov head"),
    ("zlab", {"layers.1.mlp.up_proj.weight": None}, "missing layers.1.mlp.up_proj.weight"),
    ("zlab", {"layers.0.attention_conv.base_kernel": mx.zeros((2, 2, 64))}, "attention_conv"),
    ("zlab", {"hidden_norm.weight": mx.zeros((64,), mx.int32)}, "hidden_norm.weight is I32"),
    ("specforge", {"aux_hidden_norms.0.weight": mx.ones((64,))}, "aux_hidden_norms.0.weight"),
    ("specforge", {"layers.0.self_attn.qkv_proj.weight": mx.zeros((128, 64))}, "holds both"),
    ("specforge", {"layers.0.self_attn.qkv_proj.weight": mx.zeros((99, 64))}, "expected 128 rows"),
    ("specforge", {"markov_head.gate_proj.weight": mx.zeros((16, 80))}, "has markov_head.gate"),
    ("specforge", {"markov_head.joint_proj.weight": mx.zeros((48, 96))}, "has markov_head.joint"),
    ("lfm2", {"fc.weight": mx.zeros((64, 320))}, "both with and without 'model.'"),
    ("lfm2", {"model.hidden_norm.weight": None}, "missing hidden_norm.weight"),
    ("nvidia", {f"{FIRST}weight_scale": None}, "weight_scale is missing"),
    ("nvidia", {f"{FIRST}weight_scale": mx.zeros((128, 4), mx.uint8)}, "expected F8_E4M3 [128, 4]"),
    ("nvidia", {f"{FIRST}weight": mx.zeros((128, 30), mx.uint8)}, "of NVFP4"),
    ("nvidia", {f"{FIRST}weight_scale_2": mx.zeros((4,))}, "weight_scale_2 is F32 [4]"),
    ("nvidia", {f"{FIRST}weight_scale_2": mx.array(float("inf"))}, "NaN or infinite"),
    ("nvidia", {f"{FIRST}weight_scale_2": None}, "up_proj.weight"),
    ("nvidia", {f"{FIRST}weight_scale": ("F8_E4M3", (128, 4), b"\x7f" * 512)}, "NaN or infinite"),
    ("nvidia", {"lm_head.weight": mx.zeros((320, 64))}, "has_lm_head is false"),
    ("nvidia", {"layers.0.self_attn.attention_sink_bias": mx.zeros((4,))},
     "missing layers.1.self_attn.attention_sink_bias"),
    ("ornith", {"layers.0.self_attn.q_proj.weight": mx.zeros((64, 64))}, "expected [128, 64]"),
    ("eagle3", {"input_norm.weight": mx.ones((320,))}, "holds input_norm.weight"),
    ("eagle3", {"layers.0.hidden_norm.weight": None}, "missing layers.0.hidden_norm.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "changes", "expected"), TENSORS)
def test_tensors(tmp_path, form, changes, expected):
    config, tensors = form_of(form, ROWS if form == "speculators" else None)
    kept = {k: v for k, v in (tensors | changes).items() if v is not None}
    line = refusal(pack.write(tmp_path / "d", config, kept))
    assert expected in line, line


@pytest.mark.parametrize("form", FORMS)
def test_damaged_files(tmp_path, form):
    folder = pack.write(tmp_path / "d", *form_of(form))
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    huge = struct.pack("<Q", 2**60) + whole[8:]
    for damaged in (whole[:-1], whole[: len(whole) // 2], whole[:6], b"", whole + b"\0", huge,
                    whole[:8] + b"[" + whole[9:]):  # fmt: skip
        path.write_bytes(damaged)
        assert "model.safetensors" in refusal(folder)
    path.unlink()
    assert "no weights in this folder" in refusal(folder)


def gguf_with(tmp_path, metadata=None, tensors=None, **options):
    config, kept = pack.native()
    stored = {writer.gguf_name(k): v for k, v in kept.items()} | (tensors or {})
    told = writer.gguf_metadata(config) | (metadata or {})
    path = tmp_path / "d.gguf"
    path.write_bytes(writer.gguf_bytes(told, {k: v for k, v in stored.items() if v is not None},
                                     **options))  # fmt: skip
    return path


GGUF = [
    ({"general.architecture": "llama"}, {}, "general.architecture 'llama'"),
    ({"dflash.target_layers": [-1, 2]}, {}, "has -1, expected 0 or more"),
    ({"dflash.target_layers": [0, 2, 2]}, {}, "strictly increasing"),
    ({"dflash.mask_token_id": 9}, {}, "dflash.mask_token_id is 9, but tokenizer.ggml"),
    ({"dflash.vocab_size": 300}, {}, "the sizes of the vocabulary differ"),
    ({"dflash.attention.sliding_window": 8}, {}, "sliding_window_pattern"),
    ({"dflash.rope.scaling.type": "yarn"}, {}, "rope scaling 'yarn'"),
    ({"dflash.block_count": 3}, {}, "missing layers.2"),
    ({"dflash.rope.dimension_count": 8}, {}, "rope.dimension_count 8 is not read"),
    ({"dflash.attention.value_length": 32}, {}, "attention.value_length 32 is not read"),
    ({"dflash.attention.head_count": 0}, {}, "num_attention_heads is 0"),
    ({"dflash.block_size": 0}, {}, "block_size is 0"),
    ({"dflash.attention": 1}, {}, "dflash.attention"),
    ({"general.alignment": 24}, {}, "general.alignment is 24"),
    ({}, {"d2t": mx.zeros((8,))}, "whether this d2t"),
    ({}, {"selector_hidden.weight": mx.zeros((8, 8))}, "DFlash 2's candidate selector"),
    ({}, {"fc.weight": None}, "missing fc.weight"),
    ({}, {"conf_proj.weight": mx.zeros((1, 70))}, "expected 64 or 80 columns"),
    ({}, {"blk.0.attn_conv_base": mx.zeros((2, 2))}, "attn_conv_base"),
    ({}, {"dspark.fc.weight": mx.zeros((64, 320))}, "under two names"),
    ({}, {"fc.weight": mx.full((64, 320), float("inf"))}, "NaN or infinite"),
    ({}, {"fc.weight": mx.zeros((64, 320), mx.uint8)}, "is quantized (Q4_0)"),
]


@pytest.mark.parametrize(("metadata", "tensors", "expected"), GGUF)
def test_gguf(tmp_path, metadata, tensors, expected):
    line = refusal(gguf_with(tmp_path, metadata, tensors))
    assert expected in line, line


def test_damaged_gguf(tmp_path):
    path = gguf_with(tmp_path)
    whole = path.read_bytes()
    tokens = whole.index(b"tokenizer.ggml.tokens") + 21
    name = whole.index(b"enc.output_norm.weight")
    count = struct.pack("<Q", 2**61)
    damaged = [
        b"", whole[:3], b"GGUX" + whole[4:], whole[:12], whole[:40], whole[:-40000], whole[:-1000],
        whole[:4] + struct.pack("<I", 2) + whole[8:], whole[:4] + struct.pack(">I", 3) + whole[8:],
        whole[:8] + count + whole[16:], whole[:16] + count + whole[24:],
        whole[:24] + count + whole[32:],  # a key of 2**61 bytes
        whole[: tokens + 8] + count + whole[tokens + 16 :],  # so many tokens
        whole[:tokens] + struct.pack("<I", 77) + whole[tokens + 4 :],
        whole[:name] + b"\xff" + whole[name + 1 :],
        whole[: name + 22] + struct.pack("<I", 9) + whole[name + 26 :],  # dimensions
        whole[: name + 26] + count + whole[name + 34 :],  # a size
        whole[: name + 34] + struct.pack("<I", 12) + whole[name + 38 :],  # Q4_K
        whole[: name + 34] + struct.pack("<I", 99) + whole[name + 38 :],
        whole[: name + 38] + struct.pack("<Q", 17) + whole[name + 46 :],  # unaligned
        whole[: name + 38] + struct.pack("<Q", 2**63) + whole[name + 46 :],  # beyond the end
        whole.replace(b"output_norm.weight", b"enc.output_norm.we", 1),
    ]  # fmt: skip
    for number, content in enumerate(damaged):
        path.write_bytes(content)
        assert "d.gguf" in refusal(path), number


def test_several_gguf_files_are_no_guess(tmp_path):
    path = gguf_with(tmp_path)
    (tmp_path / "other.gguf").write_bytes(path.read_bytes())
    assert "several GGUF files: d.gguf, other.gguf; name one of them" in refusal(tmp_path)


def test_side_file_that_is_no_json(tmp_path):
    config, tensors = form_of("nvidia")
    del config["quantization_config"]
    folder = pack.write(tmp_path / "d", config, tensors)
    (folder / "hf_quant_config.json").write_text("{")
    assert "hf_quant_config.json is not valid JSON" in refusal(folder)
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "INT4_AWQ"}})
    )
    assert "quant_algo 'INT4_AWQ' is not read" in refusal(folder)
