"""A small writer of GGUF files, for the fixture drafters under llama.cpp's names."""

from __future__ import annotations

import struct
from pathlib import Path

import mlx.core as mx

from . import packagings

GGUF_TYPES = {"F32": 0, "F16": 1, "BF16": 30, "I64": 27, "U8": 2}
GGUF_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
GGUF_NAMES = {
    "embed_tokens": "token_embd", "lm_head": "output", "norm": "output_norm",
    "hidden_norm": "enc.output_norm", "fc": "fc", "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2", "confidence_head.proj": "conf_proj",
}  # fmt: skip


def gguf_name(name):
    stem, _, last = name.rpartition(".")
    if stem.startswith("layers."):
        _, number, rest = stem.split(".", 2)
        return f"blk.{number}.{GGUF_LAYER[rest]}.{last}"
    return f"{GGUF_NAMES[stem]}.{last}"


def gguf_metadata(config, arch="dflash"):
    keys = {
        "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
        "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
        "block_size": "block_size", "context_length": "max_position_embeddings",
    }  # fmt: skip
    return {"general.architecture": arch} | {
        f"{arch}.{theirs}": config[ours] for theirs, ours in keys.items()
    } | {
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-6, f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.target_layers": [i + 1 for i in config["target_layer_ids"]],
        f"{arch}.sample_from_anchor": True, f"{arch}.attention.causal": False,
        "tokenizer.ggml.mask_token_id": config["mask_token_id"],
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(config["vocab_size"])],
    }  # fmt: skip


def gguf_bytes(metadata, tensors, version=3, alignment=32):
    """A GGUF file: matrices in their own dtype, vectors in float32."""
    entries = {}
    for name, value in tensors.items():
        one = value.ndim == 1
        entries[name] = packagings.raw(value.astype(mx.float32) if one else value)
    out = [b"GGUF", struct.pack("<IQQ", version, len(entries), len(metadata))]
    out += [text(key) + value_bytes(value) for key, value in metadata.items()]
    place = 0
    for name, (dtype, shape, data) in entries.items():
        dims = struct.pack(f"<{len(shape)}Q", *shape[::-1])
        out.append(text(name) + struct.pack("<I", len(shape)) + dims
                   + struct.pack("<IQ", GGUF_TYPES[dtype], place))  # fmt: skip
        place += -(-len(data) // alignment) * alignment
    head = b"".join(out)
    head += bytes(-len(head) % alignment)
    return head + b"".join(d + bytes(-len(d) % alignment) for _, _, d in entries.values())


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_bytes(value, bare=False):
    kinds = {bool: (7, "?"), int: (5, "i"), float: (6, "f")}
    if isinstance(value, str):
        return (b"" if bare else struct.pack("<I", 8)) + text(value)
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else kinds[type(value[0])][0]
        items = b"".join(value_bytes(item, bare=True) for item in value)
        return struct.pack("<IIQ", 9, kind, len(value)) + items
    kind, code = kinds[type(value)]
    return (b"" if bare else struct.pack("<I", kind)) + struct.pack(f"<{code}", value)


def gguf(folder, config, tensors, dtype=mx.float32, **changes) -> Path:
    """A folder with one GGUF file; `changes` to the metadata, `__` for a dot, None removes."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = gguf_metadata(config) | {k.replace("__", "."): v for k, v in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    named = {gguf_name(k): v.astype(dtype) for k, v in tensors.items()}
    (folder / "drafter.gguf").write_bytes(gguf_bytes(metadata, named))
    return folder
