"""The Gemma4 form of the block backbone (method section 3.5)."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.config import DrafterConfig

from . import qwen3
from .context import ContextCache


class Attention(qwen3.Attention):
    """Scale 1, weightless norm on values, which may be the raw keys; partial rotary embedding."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.scale = 1.0
        self.eps = config.rms_norm_eps
        self.shared_values = config.values_are_keys
        if self.shared_values:
            del self.v_proj

    def values(self, rows: mx.array, raw_keys: mx.array) -> mx.array:
        """Values [1, n, kv_heads, head_dim]: keys before norm and rotation, or their own."""
        raw = raw_keys if self.shared_values else super().values(rows, raw_keys)
        return mx.fast.rms_norm(raw, None, self.eps)


class MLP(qwen3.MLP):
    """W_down(gelu(W_gate u) * W_up u), the tanh form of gelu."""

    def __call__(self, rows: mx.array) -> mx.array:
        """[..., d] -> [..., d]."""
        return self.down_proj(nn.gelu_approx(self.gate_proj(rows)) * self.up_proj(rows))


class Layer(nn.Module):
    """Norms before and after both halves; the output is scaled by a stored scalar."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            setattr(self, f"{name}_layernorm", norm)
        self.layer_scalar = mx.ones((1,))

    def __call__(self, block: mx.array, context: mx.array | None, cache: ContextCache) -> mx.array:
        """[1, b, d] -> [1, b, d]."""
        mixed = self.self_attn(self.input_layernorm(block), context, cache)
        block = block + self.post_attention_layernorm(mixed)
        fed = self.mlp(self.pre_feedforward_layernorm(block))
        return (block + self.post_feedforward_layernorm(fed)) * self.layer_scalar
