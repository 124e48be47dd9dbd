"""Writers that re-package the tiny fixture drafters in every packaging that is read."""

from __future__ import annotations

import json
import math
import struct

import mlx.core as mx
import numpy as np

from .tools import FIXTURES

SHAPE = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "rms_norm_eps", "vocab_size")  # fmt: skip
HEADS = ("markov_rank", "markov_head_type", "enable_confidence_head",
         "confidence_head_with_markov")  # fmt: skip
TABLES = ("embed_tokens.weight", "lm_head.weight")
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8", "int64": "I64",
          "int32": "I32", "bool": "BOOL"}  # fmt: skip


def native(name="dspark-vanilla"):
    """A fixture's config and tensors, as DeepSpec wrote them."""
    folder = FIXTURES / name
    config = json.loads((folder / "config.json").read_text())
    return config, dict(mx.load(str(folder / "model.safetensors")))


def write(folder, config, tensors, **files):
    """A checkpoint folder; tensors are mx arrays or (dtype, shape, bytes)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors({k: raw(v) for k, v in tensors.items()}))
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


def raw(value):
    """(dtype, shape, bytes) of an mx array, or what already is that."""
    if isinstance(value, tuple):
        return value
    kind = str(value.dtype).rpartition(".")[2]
    plain = value.view(mx.uint16) if kind == "bfloat16" else value
    return DTYPES[kind], tuple(value.shape), np.array(plain).tobytes()


def safetensors(entries):
    """The bytes of a safetensors file."""
    header, place = {}, 0
    for name, (dtype, shape, data) in entries.items():
        offsets = [place, place + len(data)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        place += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(e[2] for e in entries.values())


def pick(config, names):
    return {name: config[name] for name in names if name in config}


def without(tensors, *names):
    return {k: v for k, v in tensors.items() if not k.startswith(names)}


def flat_qwen3(config):
    """A plain Qwen3 config, as drafters outside DeepSpec's tree carry it."""
    return pick(config, SHAPE) | {
        "model_type": "qwen3", "head_dim": config["head_dim"], "hidden_act": "silu",
        "rope_theta": 10000.0, "max_position_embeddings": 1024, "attention_bias": False,
        "layer_types": config["layer_types"], "dtype": "float32",
    }  # fmt: skip


def zlab(config, tensors):
    """z-lab DFlash, nested, of a drafter whose heads are left out."""
    ours = flat_qwen3(config) | {
        "architectures": ["DFlashDraftModel"], "num_target_layers": config["num_target_layers"],
        "block_size": config["block_size"], "tie_word_embeddings": True,
        "dflash_config": pick(config, ("target_layer_ids", "mask_token_id")),
    }  # fmt: skip
    return ours, without(tensors, *TABLES, "markov_head", "confidence_head")


def speculators(config, tensors, algorithm="dspark", rows=None, full=True):
    """speculators; `rows` (token ids) reduces the draft vocabulary, `full` keeps the tables."""
    layer = flat_qwen3(config) | {"use_sliding_window": False}
    layer["rope_parameters"] = {"rope_theta": layer.pop("rope_theta"), "rope_type": "default"}
    ours = pick(config, ("block_size", "mask_token_id", *HEADS)) | {
        "architectures": ["DSparkDraftModel"], "speculators_model_type": algorithm,
        "speculators_version": "0.9.0", "transformer_layer_config": layer, "dtype": "float32",
        "draft_vocab_size": len(rows) if rows else config["vocab_size"],
        "aux_hidden_state_layer_ids": [i + 1 for i in config["target_layer_ids"]],
        "target_hidden_size": None, "sample_from_anchor": True, "sliding_window_non_causal": False,
        "speculators_config": {
            "algorithm": algorithm, "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy",
                                  "speculative_tokens": config["block_size"]}],
            "verifier": {"name_or_path": "tiny", "architectures": ["Qwen3ForCausalLM"]},
        },
    }  # fmt: skip
    kept = tensors | {"verifier_norm.weight": mx.ones((64,))}
    if rows:
        kept |= reduced(tensors, rows, config["vocab_size"])
    return ours, kept if full else without(kept, "embed_tokens", *([] if rows else ["lm_head"]))


def reduced(tensors, rows, vocabulary):
    """Head rows of some tokens, with d2t offsets and t2d marks."""
    at, marks = mx.array(rows), np.zeros(vocabulary, bool)
    marks[rows] = True
    names = ("lm_head.weight", "markov_head.markov_w2.weight")
    return {name: tensors[name][at] for name in names if name in tensors} | {
        "d2t": mx.array(np.array(rows) - np.arange(len(rows)), dtype=mx.int64),
        "t2d": mx.array(marks),
    }


def eagle3(config, tensors, rows=None):
    """speculators' eagle3 of DeepSpec's: a Qwen3 layer, no extra norms."""
    ours, kept = speculators(config | {"block_size": config["ttt_length"]}, tensors, "eagle3", rows)
    ours["eagle_aux_hidden_state_layer_ids"] = ours.pop("aux_hidden_state_layer_ids")
    for key in ("block_size", "mask_token_id", "sample_from_anchor"):
        ours.pop(key, None)
    norms = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return ours | {"architectures": ["Eagle3Speculator"]} | dict.fromkeys(norms, False), kept


def specforge(config, tensors, fused=False):
    """SpecForge / SGLang; `fused` joins q, k and v."""
    ours = flat_qwen3(config) | pick(config, ("block_size", "num_target_layers", *HEADS)) | {
        "architectures": ["DSparkDraftModel"],
        "dflash_config": {"projector_type": "dspark"}
        | pick(config, ("target_layer_ids", "mask_token_id")),
    }  # fmt: skip
    if fused:
        for layer in range(config["num_hidden_layers"]):
            at = f"layers.{layer}.self_attn."
            parts = [tensors[f"{at}{x}_proj.weight"] for x in "qkv"]
            tensors = without(tensors, *(f"{at}{x}_proj" for x in "qkv"))
            tensors[f"{at}qkv_proj.weight"] = mx.concatenate(parts)
    return ours, tensors


def lfm2(config, tensors, prefix="model.", neox=True):
    """LiquidAI's form; `neox` True rotates as DeepSpec does."""
    ours = flat_qwen3(config) | pick(config, ("block_size", *HEADS)) | {
        "architectures": ["Lfm2DSparkDraftModel"], "rope_is_neox_style": neox,
        "tie_word_embeddings": True,
        "dflash_config": pick(config, ("target_layer_ids", "mask_token_id", "num_target_layers")),
    }  # fmt: skip
    return ours, {f"{prefix}{k}": v for k, v in without(tensors, *TABLES).items()}


def nvfp4(weight, seed=0):
    """A matrix packed as modelopt does (badly): the three stored parts, by suffix."""
    numbers = np.random.default_rng(seed)
    rows, columns = weight.shape
    codes = numbers.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
    scales = numbers.integers(0x30, 0x48, (rows, columns // 16), dtype=np.uint8)
    whole = np.float32(1 / 40 / math.sqrt(columns))
    return {
        "weight": ("U8", codes.shape, codes.tobytes()),
        "weight_scale": ("F8_E4M3", scales.shape, scales.tobytes()),
        "weight_scale_2": ("F32", (), whole.tobytes()),
    }


def unpack_nvfp4(parts):
    """float64 values, by the formats' own definitions."""
    steps = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = np.frombuffer(parts["weight"][2], np.uint8).reshape(parts["weight"][1])
    fours = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    values = np.where(fours & 8, -1.0, 1.0) * steps[fours & 7]
    eights = np.frombuffer(parts["weight_scale"][2], np.uint8).reshape(parts["weight_scale"][1])
    scales = e4m3(eights.astype(int))
    whole = np.frombuffer(parts["weight_scale_2"][2], np.float32)[0]
    return values * np.repeat(scales, 16, axis=1) * np.float64(whole)


def e4m3(codes):
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    return np.where(codes >> 7, -1.0, 1.0) * np.where(exponent, normal, mantissa / 8 * 2.0**-6)


def nvidia(config, tensors):
    """DeepSpec's form with the MLP matrices packed; what they now stand for goes along."""
    ours = config | {
        "sample_from_anchor": False, "dflash_query_causal": True, "has_lm_head": False,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"},
    }  # fmt: skip
    kept = without(tensors, "lm_head")
    for index, name in enumerate([n for n in kept if ".mlp." in n]):
        for suffix, part in nvfp4(kept.pop(name), index).items():
            kept[name.replace("weight", suffix)] = part
    return ours, kept


def nested_again(config):
    """NVIDIA's way: facts at the top, again in `dflash_config`, and taps counted from inputs."""
    again = pick(config, ("target_layer_ids", "mask_token_id", "sample_from_anchor",
                          "attention_sink_bias"))  # fmt: skip
    again |= {"causal": config["dflash_query_causal"], "use_swa": False}
    taps = [i + 1 for i in config["target_layer_ids"]]
    return config | {"dflash_config": again, "eagle_aux_hidden_state_layer_ids": taps}


def ornith(config, tensors, seed=1):
    """The Qwen3.5-native fork: random gates beside the queries, norms stored less one."""
    ours = config | {
        "architectures": ["Qwen35DSparkModel"], "model_type": "qwen3_5",
        "enable_qwen35_gated_q_proj": True, "partial_rotary_factor": 0.25,
    }  # fmt: skip
    numbers, kept = np.random.default_rng(seed), {}
    for name, value in tensors.items():
        if name.endswith("norm.weight"):
            value = value - 1
        if name.endswith("q_proj.weight"):
            gates = numbers.standard_normal((4, 16, 64)).astype(np.float32) / 4
            pairs = mx.stack([value.reshape(4, 16, 64), mx.array(gates)], axis=1)
            value = pairs.reshape(128, 64)
        kept[name] = value
    return ours, kept
