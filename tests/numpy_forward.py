"""Drafters in plain float64 numpy, written from the method and apart from the package's modules.

Weights are a dict of arrays under DeepSpec's names; every loop is spelled out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Facts:
    """What a forward has to know beside the weights; `masks` is (window, causal) per layer."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    layers: int = 2
    eps: float = 1e-6
    theta: float = 1e4
    block: int = 7
    mask_id: int = 3
    slot: int = 0
    interleaved: bool = False
    scaling: dict | None = None  # of the rope: type and parameters
    rotary: int | None = None  # leading dimensions of a head that are rotated (None: all)
    gated: bool = False
    masks: list = field(default_factory=lambda: [(None, False)] * 2)
    embedding_scale: float = 1.0
    multiplier: float = 1.0
    softcap: float | None = None
    # Eagle3
    window: int | None = None
    norms_qk: bool = True
    before_residual: bool = False
    feature_norm: str | None = None
    output_normed: bool = False
    gemma: bool = False  # values are keys, scale 1, norms behind both halves, scaled output
    partial: float = 1.0  # share of the pairs that are rotated


def rms(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1.0 + np.exp(-x))


def rotate(row, position, facts):
    """One head's row [dim] turned to a position."""
    size = facts.rotary or facts.dim
    half, out = size // 2, row.copy()
    for i in range(half):
        frequency, scale = angle(i, size, facts)
        frequency = 0.0 if i >= int(facts.partial * half) else frequency
        c, s = math.cos(position * frequency) * scale, math.sin(position * frequency) * scale
        a, b = (2 * i, 2 * i + 1) if facts.interleaved else (i, i + half)
        out[a], out[b] = row[a] * c - row[b] * s, row[a] * s + row[b] * c
    return out


def angle(i, size, facts):
    """Radians per position of pair i, and the factor on its length."""
    plain = facts.theta ** (-2.0 * i / size)
    rule = (facts.scaling or {}).get("rope_type")
    return SCALINGS[rule](plain, i, size, facts) if rule else (plain, 1.0)


def yarn(plain, i, size, facts):
    factor, trained = facts.scaling["factor"], facts.scaling["original_max_position_embeddings"]

    def pair_of(turns):  # the pair that makes so many turns over the trained length
        return size * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(facts.theta))

    low = max(math.floor(pair_of(facts.scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(pair_of(facts.scaling.get("beta_slow", 1))), size - 1)
    ramp = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
    return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1.0


def llama3(plain, i, size, facts):
    factor, trained = facts.scaling["factor"], facts.scaling["original_max_position_embeddings"]
    low, high = facts.scaling["low_freq_factor"], facts.scaling["high_freq_factor"]
    turns = trained * plain / (2 * math.pi)  # over the trained length
    if turns > high:
        return plain, 1.0
    if turns < low:
        return plain / factor, 1.0
    share = (turns - low) / (high - low)
    return (1 - share) * plain / factor + share * plain, 1.0


def linear(plain, i, size, facts):
    return plain / facts.scaling["factor"], 1.0


SCALINGS = {"yarn": yarn, "llama3": llama3, "linear": linear}


def attend(queries, keys, values, sees, sinks=None):
    """[rows, heads, dim] over [total, kv_heads, dim]; `sees(row, key)` says what counts."""
    rows, heads, dim = queries.shape
    share = heads // keys.shape[1]
    out = np.zeros_like(queries)
    for r in range(rows):
        for h in range(heads):
            shown = [k for k in range(len(keys)) if sees(r, k)]
            scores = np.array([queries[r, h] @ keys[k, h // share] for k in shown]) / dim**0.5
            top = max(scores.max(), sinks[h] if sinks is not None else -np.inf)
            powers = np.exp(scores - top)
            total = powers.sum() + (np.exp(sinks[h] - top) if sinks is not None else 0.0)
            out[r, h] = sum(p / total * values[k, h // share]
                            for p, k in zip(powers, shown, strict=True))  # fmt: skip
    return out


def heads_of(rows, weight, norm, number, facts):
    split = (rows @ weight.T).reshape(len(rows), number, facts.dim)
    return split if norm is None else rms(split, norm, facts.eps)


def gelu(x):
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mlp(x, w, at, bend=silu):
    gate, up = x @ w[f"{at}.mlp.gate_proj.weight"].T, x @ w[f"{at}.mlp.up_proj.weight"].T
    return (bend(gate) * up) @ w[f"{at}.mlp.down_proj.weight"].T


def block_rows(w, facts, features, anchor):
    """Hidden rows [slots, d] after the final norm, for taps [n, d] each and one block."""
    context = rms(np.concatenate(features, axis=-1) @ w["fc.weight"].T,
                  w["hidden_norm.weight"], facts.eps)  # fmt: skip
    n, slots = len(context), facts.block
    ids = [anchor] + [facts.mask_id] * (slots - 1)
    x = w["embed_tokens.weight"][ids] * facts.embedding_scale
    for layer in range(facts.layers):
        at = f"layers.{layer}"
        u = rms(x, w[f"{at}.input_layernorm.weight"], facts.eps)
        x = x + block_attention(w, facts, f"{at}.self_attn", context, u, facts.masks[layer])
        x = x + mlp(rms(x, w[f"{at}.post_attention_layernorm.weight"], facts.eps), w, at)
    assert x.shape[0] == slots and n == len(features[0])
    return rms(x, w["norm.weight"], facts.eps)


def block_attention(w, facts, at, context, u, mask):
    n, slots, (window, causal) = len(context), len(u), mask
    both = np.concatenate([context, u])
    q_weight, gates = w[f"{at}.q_proj.weight"], None
    if facts.gated:  # per head: first its query rows, then as many rows of its gate
        pairs = q_weight.reshape(facts.heads, 2, facts.dim, -1)
        q_weight = pairs[:, 0].reshape(facts.heads * facts.dim, -1)
        gates = u @ pairs[:, 1].reshape(facts.heads * facts.dim, -1).T
    q = heads_of(u, q_weight, w[f"{at}.q_norm.weight"], facts.heads, facts)
    k = heads_of(both, w[f"{at}.k_proj.weight"], w[f"{at}.k_norm.weight"], facts.kv_heads, facts)
    v = heads_of(both, w[f"{at}.v_proj.weight"], None, facts.kv_heads, facts)
    q = np.array([[rotate(q[r, h], n + r, facts) for h in range(facts.heads)]
                  for r in range(slots)])  # fmt: skip
    k = np.array([[rotate(k[p, h], p, facts) for h in range(facts.kv_heads)]
                  for p in range(n + slots)])  # fmt: skip

    def sees(row, key):
        if key >= n and causal and key - n > row:
            return False
        return window is None or (n + row) - key < window

    out = attend(q, k, v, sees, w.get(f"{at}.attention_sink_bias")).reshape(slots, -1)
    if gates is not None:
        out = out / (1.0 + np.exp(-gates))
    return out @ w[f"{at}.o_proj.weight"].T


def base_logits(w, facts, hidden):
    logits = hidden @ w["lm_head.weight"].T * facts.multiplier
    return logits if facts.softcap is None else facts.softcap * np.tanh(logits / facts.softcap)


def draft_block(w, facts, features, anchor):
    """Greedy drafts (target tokens), their corrected logits [k, head rows], and confidences."""
    hidden = block_rows(w, facts, features, anchor)[facts.slot :]
    ids = w.get("draft_ids", np.arange(len(w["lm_head.weight"])))
    tokens, rows, sure, previous = [], [], [], anchor
    for h in hidden:
        row, e = base_logits(w, facts, h), None
        if "markov_head.markov_w1.weight" in w:
            e = w["markov_head.markov_w1.weight"][previous]
            row = row + w["markov_head.markov_w2.weight"] @ e
        if "confidence_head.proj.weight" in w:
            wide = w["confidence_head.proj.weight"].shape[1] > len(h)
            f = np.concatenate([h, e]) if wide else h
            sure.append(w["confidence_head.proj.weight"] @ f + w["confidence_head.proj.bias"])
        previous = int(ids[np.argmax(row)])
        tokens.append(previous)
        rows.append(row)
    return tokens, np.array(rows), np.array(sure).reshape(-1)


def draft_eagle3(w, facts, features, following, count):
    """Greedy drafts and logits of an Eagle3 drafter: the whole sequence anew at every step."""
    taps = features
    if facts.feature_norm == "each":
        taps = [rms(f, w[f"fc_norm.{i}.weight"], facts.eps) for i, f in enumerate(features)]
    joined = np.concatenate(taps, axis=-1)
    if facts.feature_norm == "joint":
        joined = rms(joined, w["input_norm.weight"], facts.eps)
    ids = w.get("draft_ids", np.arange(len(w["lm_head.weight"])))
    hidden, tokens = list(joined @ w["fc.weight"].T), list(following)
    drafts, rows = [], []
    for _ in range(count):
        out = eagle3_layer(w, facts, np.array(tokens), np.array(hidden))[-1]
        normed = rms(out, w["norm.weight"], facts.eps)
        rows.append(base_logits(w, facts, normed))
        drafts.append(int(ids[np.argmax(rows[-1])]))
        tokens.append(drafts[-1])
        hidden.append(normed if facts.output_normed else out)
    return drafts, np.array(rows)


def eagle3_layer(w, facts, tokens, hidden):
    at, eps, n = "layers.0", facts.eps, len(tokens)
    e = rms(
        w["embed_tokens.weight"][tokens] * facts.embedding_scale,
        w[f"{at}.input_layernorm.weight"],
        eps,
    )
    g = rms(hidden, w[f"{at}.hidden_norm.weight"], eps)
    u = np.concatenate([e, g], axis=-1)
    norms = [w[f"{at}.self_attn.{x}_norm.weight"] if facts.norms_qk else None for x in "qk"]
    q = heads_of(u, w[f"{at}.self_attn.q_proj.weight"], norms[0], facts.heads, facts)
    k = heads_of(u, w[f"{at}.self_attn.k_proj.weight"], norms[1], facts.kv_heads, facts)
    if facts.gemma:
        v = rms(
            heads_of(u, w[f"{at}.self_attn.k_proj.weight"], None, facts.kv_heads, facts), 1.0, eps
        )
        q = q * facts.dim**0.5  # undoes what `attend` divides by
    else:
        v = heads_of(u, w[f"{at}.self_attn.v_proj.weight"], None, facts.kv_heads, facts)
    q = np.array([[rotate(q[p, h], p, facts) for h in range(facts.heads)] for p in range(n)])
    k = np.array([[rotate(k[p, h], p, facts) for h in range(facts.kv_heads)] for p in range(n)])

    def sees(row, key):
        return key <= row and (facts.window is None or row - key < facts.window)

    out = attend(q, k, v, sees).reshape(n, -1) @ w[f"{at}.self_attn.o_proj.weight"].T
    if facts.gemma:
        norms = {x: w[f"{at}.{x}_layernorm.weight"] for x in (
            "post_attention", "pre_feedforward", "post_feedforward")}  # fmt: skip
        x = hidden + rms(out, norms["post_attention"], eps)
        fed = mlp(rms(x, norms["pre_feedforward"], eps), w, at, gelu)
        return (x + rms(fed, norms["post_feedforward"], eps)) * w[f"{at}.layer_scalar"]
    x = (g if facts.before_residual else hidden) + out
    return x + mlp(rms(x, w[f"{at}.post_attention_layernorm.weight"], eps), w, at)
