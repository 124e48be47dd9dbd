"""Layer by layer against a small PyTorch forward, where torch is installed (extra `torch`).

Everything here that is torch's stands on its own: the files are read with PyTorch's and
safetensors' own readers, the config raw, and the forward is written from the method (sections 3
to 5) with none of this package's modules. Both sides compute in float32.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from dspark_mlx import hub
from dspark_mlx.checkpoints import DrafterSource, deepspec, open_drafter
from dspark_mlx.drafters.dspark import DSpark
from dspark_mlx.drafters.weights import load_drafter

CONTEXT = 13  # committed positions before the block
SEED = 7
TOLERANCE = 1e-3  # of the largest value in a row; float32 agrees to some 1e-5

Named = dict[str, np.ndarray]  # stage -> its rows


def torch_parity(source: str | Path) -> dict[str, float] | str:
    """Largest difference by stage, relative to the stage's largest value; or why none is given.

    `source` is what `convert` was given: the weights as they are stored, nothing quantized.
    """
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:  # absent, or without a library that it links to
        return f"torch cannot be imported (extra: torch): {error}"
    with (found := open_drafter(hub.drafter_folder(str(source)))).tensors:
        if (reason := _unfit(found)) is not None:
            return reason
        drafter = load_drafter(found, dtype=mx.float32)
    inputs = _inputs(drafter)
    theirs = _torch_forward(_read_raw(found), json.loads(_config_text(found)), inputs)
    ours = _our_forward(drafter, inputs)
    return {name: _difference(ours[name], theirs[name]) for name in theirs}


def _unfit(found: DrafterSource) -> str | None:
    """Why there is no PyTorch forward for a source, None where there is."""
    config = found.config
    plain = found.packaging == deepspec.NAME and (config.kind, config.backbone) == (
        "dspark", "qwen3"
    )  # fmt: skip
    odd = config.layer_masks or config.attention_sinks or config.draft_vocab_size
    if plain and not odd:
        return None
    return "the PyTorch forward covers DeepSpec's DSpark and DFlash in Qwen3 form, without windows"


def _config_text(found: DrafterSource) -> str:
    return (found.folder / "config.json").read_text(encoding="utf-8")


def _read_raw(found: DrafterSource) -> dict[str, Any]:
    """Every tensor, in float32, as PyTorch itself reads the files."""
    import torch
    from safetensors.torch import load_file

    weights: dict[str, Any] = {}
    for file in found.tensors.files:
        if file.suffix == ".safetensors":
            weights |= load_file(file)
        else:
            weights |= torch.load(file, map_location="cpu", weights_only=True)
    return {name: value.float() for name, value in weights.items()}


def _inputs(drafter: DSpark) -> Named:
    """A random context, a random block and random tokens before each draft."""
    config, numbers = drafter.config, np.random.default_rng(SEED)
    wide = len(config.target_layer_ids) * config.hidden_size
    return {
        "features": numbers.standard_normal((CONTEXT, wide)).astype(np.float32),
        "block": numbers.standard_normal((config.block_size, config.hidden_size)).astype(
            np.float32
        ),
        "previous": numbers.integers(0, config.vocab_size, config.block_size),
    }


def _our_forward(drafter: DSpark, inputs: Named) -> Named:
    """The package's modules over the inputs, by stage."""
    context = drafter.start()
    taps = mx.split(mx.array(inputs["features"]), len(drafter.config.target_layer_ids), axis=-1)
    drafter.extend(context, taps, mx.zeros((CONTEXT,), mx.int32))
    stages: dict[str, mx.array] = {"context": context.pending[0]}
    rows = mx.array(inputs["block"])[None]
    for number, (layer, cache) in enumerate(zip(drafter.layers, context.caches, strict=True)):
        rows = layer(rows, context.pending, cache)
        stages[f"layer {number}"] = rows[0]
    hidden = stages["norm"] = drafter.norm(rows[0])
    previous = mx.array(inputs["previous"])
    if "embed_tokens" in drafter:
        stages["embedding"] = drafter.embed(previous)
    if "lm_head" in drafter:
        stages["head"] = drafter.logits(hidden)
    embedded = []
    if head := drafter.get("markov_head"):
        state, biases = head.start(), []
        for k in range(hidden.shape[0]):
            embedded.append(head.embed(previous[k : k + 1]))
            bias, state = head.bias(state, embedded[-1], hidden[k : k + 1])
            biases.append(bias)
        stages["markov head"] = mx.concatenate(biases)
    if (confidence := drafter.confidence(hidden, embedded)) is not None:
        stages["confidence"] = confidence
    return {name: np.array(value.astype(mx.float32)) for name, value in stages.items()}


def _torch_forward(w: Mapping[str, Any], config: Mapping[str, Any], inputs: Named) -> Named:
    """The same stages in PyTorch, from raw tensors and the raw config."""
    import torch

    eps = config["rms_norm_eps"]
    with torch.no_grad():
        features = torch.from_numpy(inputs["features"])
        context = _rms(features @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
        stages, rows = {"context": context}, torch.from_numpy(inputs["block"])
        for number in range(config["num_hidden_layers"]):
            rows = _layer(w, config, f"layers.{number}.", context, rows)
            stages[f"layer {number}"] = rows
        hidden = stages["norm"] = _rms(rows, w["norm.weight"], eps)
        previous = torch.from_numpy(inputs["previous"])
        if "embed_tokens.weight" in w:
            stages["embedding"] = w["embed_tokens.weight"][previous]
        if "lm_head.weight" in w:
            stages["head"] = hidden @ w["lm_head.weight"].T
        embedded = None
        if "markov_head.markov_w1.weight" in w:
            embedded = w["markov_head.markov_w1.weight"][previous]
            kind = config.get("markov_head_type") or "vanilla"
            mixed = _MIXED[kind](w, embedded, hidden)
            stages["markov head"] = mixed @ w["markov_head.markov_w2.weight"].T
        if "confidence_head.proj.weight" in w:
            proj = w["confidence_head.proj.weight"][0]
            joined = hidden
            if embedded is not None and len(proj) > hidden.shape[-1]:
                joined = torch.cat([hidden, embedded], dim=-1)
            stages["confidence"] = joined @ proj + w["confidence_head.proj.bias"]
    return {name: value.numpy() for name, value in stages.items()}


def _rms(x: Any, weight: Any, eps: float) -> Any:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def _layer(w: Mapping[str, Any], config: Mapping[str, Any], at: str, context: Any, x: Any) -> Any:
    """One decoder layer over the block's rows, the context injected (section 3.1)."""
    import torch

    eps = config["rms_norm_eps"]
    u = _rms(x, w[f"{at}input_layernorm.weight"], eps)
    x = x + _attention(w, config, f"{at}self_attn.", context, u)
    u = _rms(x, w[f"{at}post_attention_layernorm.weight"], eps)
    gate = torch.nn.functional.silu(u @ w[f"{at}mlp.gate_proj.weight"].T)
    return x + (gate * (u @ w[f"{at}mlp.up_proj.weight"].T)) @ w[f"{at}mlp.down_proj.weight"].T


def _attention(
    w: Mapping[str, Any], config: Mapping[str, Any], at: str, context: Any, u: Any
) -> Any:
    import torch

    eps, heads = config["rms_norm_eps"], config["num_attention_heads"]
    both = torch.cat([context, u])
    dim = w[f"{at}q_norm.weight"].shape[0]
    q = _rms((u @ w[f"{at}q_proj.weight"].T).view(len(u), heads, dim), w[f"{at}q_norm.weight"], eps)
    k = (both @ w[f"{at}k_proj.weight"].T).view(len(both), -1, dim)
    v = (both @ w[f"{at}v_proj.weight"].T).view(len(both), -1, dim)
    k = _rms(k, w[f"{at}k_norm.weight"], eps)
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    q, k = _rotated(q, len(context), theta), _rotated(k, 0, theta)
    share = heads // k.shape[1]
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    return out.reshape(len(u), -1) @ w[f"{at}o_proj.weight"].T


def _rotated(x: Any, start: int, theta: float) -> Any:
    """Rows [n, heads, dim] turned to positions from `start` on, halves paired."""
    import torch

    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    turns = (torch.arange(start, start + len(x), dtype=torch.float64)[:, None] * speed).float()
    cos, sin = turns.cos()[:, None], turns.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def _vanilla(w: Mapping[str, Any], embedded: Any, hidden: Any) -> Any:
    return embedded


def _gated(w: Mapping[str, Any], embedded: Any, hidden: Any) -> Any:
    import torch

    weight, bias = w["markov_head.gate_proj.weight"], w["markov_head.gate_proj.bias"]
    return torch.sigmoid(torch.cat([hidden, embedded], -1) @ weight.T + bias) * embedded


def _rnn(w: Mapping[str, Any], embedded: Any, hidden: Any) -> Any:
    import torch

    weight, bias = w["markov_head.joint_proj.weight"], w["markov_head.joint_proj.bias"]
    state, out = torch.zeros(embedded.shape[1]), []
    for e, h in zip(embedded, hidden, strict=True):
        gate, candidate, output = (weight @ torch.cat([state, e, h]) + bias).chunk(3)
        state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
        out.append(output.tanh())
    return torch.stack(out)


_MIXED: dict[str, Callable[[Mapping[str, Any], Any, Any], Any]] = {
    "vanilla": _vanilla,
    "gated": _gated,
    "rnn": _rnn,
}


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-9))
