"""The Qwen3 form of the block backbone (method sections 3.1 to 3.4)."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.rope_utils import initialize_rope

from dspark_mlx.config import DrafterConfig, LayerMask

from .context import ContextCache, smallest


def rope_of(config: DrafterConfig) -> nn.Module:
    """The rotary embedding of a head's leading dimensions, or of all."""
    return initialize_rope(
        config.rope.rotary_dims or config.head_dim,
        config.rope.theta,
        config.rope.interleaved,
        config.rope.parameters(),
        config.max_position_embeddings,
    )


class Attention(nn.Module):
    """Attention of the block's rows over the injected context and over the whole block."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        width, dim = config.hidden_size, config.head_dim
        self.sees = config.mask_of(layer)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.scale = dim**-0.5
        self.gated = config.attention_gate
        self.q_proj = nn.Linear(width, (1 + self.gated) * self.heads * dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, width, bias=False)
        self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.rope = rope_of(config)
        if config.attention_sinks:
            self.attention_sink_bias = mx.zeros((self.heads,))

    def __call__(self, block: mx.array, context: mx.array | None, cache: ContextCache) -> mx.array:
        """Rows [1, b, d] (normed) and new context rows [1, n, d] (not normed) -> [1, b, d].

        Context keys and values stay in `cache`; the block's are dropped again.
        """
        rows = block.shape[1]
        keys, values = self.project(block, context, cache.offset)
        keys, values = cache.update_and_fetch(keys, values)
        queries = self.q_proj(block).reshape(1, rows, self.heads, -1)
        if self.gated:  # a head's query, then its gate
            queries, gate = mx.split(queries, 2, axis=-1)
        queries = self.q_norm(queries)
        queries = self.rope(queries.transpose(0, 2, 1, 3), offset=cache.offset - rows)
        if (limit := self._limit(cache)) is not None:  # no row of the block sees older context
            newest = limit + rows
            keys, values = keys[..., -newest:, :], values[..., -newest:, :]
        out = scaled_dot_product_attention(
            queries,
            keys,
            values,
            cache=cache,
            scale=self.scale,
            mask=block_mask(rows, keys.shape[2], self.sees),
            sinks=self.get("attention_sink_bias"),
        )
        cache.cut(cache.offset - rows)
        cache.forget(limit)
        out = out.transpose(0, 2, 1, 3)
        if self.gated:
            out = out * mx.sigmoid(gate)
        return self.o_proj(out.reshape(1, rows, -1))

    def absorb(self, context: mx.array, cache: ContextCache) -> None:
        """Store keys and values of context rows [1, n, d] without running a block."""
        cache.update_and_fetch(*self.project(context, None, cache.offset))
        cache.forget(self._limit(cache))

    def _limit(self, cache: ContextCache) -> int | None:
        """How many of the newest context positions a block can see, by layer or by option."""
        own = None if self.sees.window is None else self.sees.window - 1
        return smallest(own, cache.window)

    def project(
        self, rows: mx.array, context: mx.array | None, offset: int
    ) -> tuple[mx.array, mx.array]:
        """Keys (normed, rotated from `offset` on) and values, each [1, kv_heads, n, head_dim]."""
        if context is not None:
            rows = mx.concatenate([context, rows], axis=1)
        shape = (1, rows.shape[1], self.kv_heads, -1)
        raw = self.k_proj(rows).reshape(shape)
        keys = self.k_norm(raw).transpose(0, 2, 1, 3)
        values = self.values(rows, raw).transpose(0, 2, 1, 3)
        return self.rope(keys, offset=offset), values

    def values(self, rows: mx.array, raw_keys: mx.array) -> mx.array:
        """Values [1, n, kv_heads, head_dim], of the same rows as `raw_keys` (same shape)."""
        return self.v_proj(rows).reshape(raw_keys.shape)


def block_mask(rows: int, total: int, sees: LayerMask) -> mx.array | None:
    """Booleans [rows, total] of what block rows see in the newest `total` keys, themselves last.

    None where they see everything.
    """
    window = sees.window if sees.window is not None and total > sees.window else None
    if window is None and not sees.causal:
        return None
    behind = mx.arange(total - rows, total)[:, None] - mx.arange(total)[None]  # [rows, total]
    mask = behind >= 0 if sees.causal else behind > -rows
    return mask if window is None else mask & (behind < window)


class MLP(nn.Module):
    """W_down(silu(W_gate u) * W_up u)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def __call__(self, rows: mx.array) -> mx.array:
        """[..., d] -> [..., d]."""
        return self.down_proj(swiglu(self.gate_proj(rows), self.up_proj(rows)))


class Layer(nn.Module):
    """A pre-norm layer; context rows skip `input_layernorm` and reach every layer unchanged."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, block: mx.array, context: mx.array | None, cache: ContextCache) -> mx.array:
        """[1, b, d] -> [1, b, d]."""
        block = block + self.self_attn(self.input_layernorm(block), context, cache)
        return block + self.mlp(self.post_attention_layernorm(block))
