"""Eagle3 (method section 11.5): one layer that drafts token by token from its own output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention

from dspark_mlx.config import DrafterConfig
from dspark_mlx.errors import UnsupportedError

from . import gemma4
from .base import Pick, Proposal
from .context import Context, ContextCache, smallest
from .qwen3 import MLP, rope_of
from .tables import TableUser


class StepContext(Context):
    """The layer's cache over committed positions, and its newest output row [1, d] (not normed)."""

    @property
    def cache(self) -> ContextCache:
        """The only layer's cache."""
        return self.caches[0]

    @property
    def newest(self) -> mx.array | None:
        """The newest output row."""
        return self.held[1]


class Attention(nn.Module):
    """Causal attention whose inputs are an embedding and a hidden row side by side."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width, dim = config.hidden_size, config.head_dim
        self.window = config.mask_of(0).window
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.scale = dim**-0.5
        self.q_proj = nn.Linear(2 * width, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * width, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * width, self.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, width, bias=False)
        if config.backbone != "llama":  # whose layers have no norm on queries and keys
            self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.rope = rope_of(config)

    def __call__(self, rows: mx.array, cache: ContextCache) -> mx.array:
        """[1, n, 2d] -> [1, n, d]; the cache grows by n."""
        count, offset = rows.shape[1], cache.offset
        window = smallest(self.window, cache.window)
        mask = create_attention_mask(rows, cache, window_size=window)

        def heads(x: mx.array, number: int) -> mx.array:
            return x.reshape(1, count, number, -1)

        queries = heads(self.q_proj(rows), self.heads)
        keys = raw = heads(self.k_proj(rows), self.kv_heads)
        values = self.values(rows, raw).transpose(0, 2, 1, 3)
        if "q_norm" in self:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = queries.transpose(0, 2, 1, 3), keys.transpose(0, 2, 1, 3)
        keys, values = cache.update_and_fetch(self.rope(keys, offset=offset), values)
        out = scaled_dot_product_attention(
            self.rope(queries, offset=offset),
            keys,
            values,
            cache=cache,
            scale=self.scale,
            mask=mask,
        )
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(1, count, -1))

    def values(self, rows: mx.array, raw_keys: mx.array) -> mx.array:
        """Values [1, n, kv_heads, head_dim], of the same rows as `raw_keys` (same shape)."""
        return self.v_proj(rows).reshape(raw_keys.shape)


class GemmaAttention(Attention):
    """Scale 1, weightless norm on values, which may be the raw keys."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.scale = 1.0
        self.eps = config.rms_norm_eps
        self.shared_values = config.values_are_keys
        if self.shared_values:
            del self.v_proj

    def values(self, rows: mx.array, raw_keys: mx.array) -> mx.array:
        """Keys before norm and rotation, or values of their own; normed."""
        raw = raw_keys if self.shared_values else super().values(rows, raw_keys)
        return mx.fast.rms_norm(raw, None, self.eps)


class Layer(nn.Module):
    """u = [norm(e) ; norm(g)]; the residual is g as it was, or normed where the config says so."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.normed_residual = config.norm_before_residual
        for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
            setattr(self, name, nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps))

    def __call__(self, embedded: mx.array, hidden: mx.array, cache: ContextCache) -> mx.array:
        """Rows e and g, [1, n, d] each -> [1, n, d]."""
        normed = self.hidden_norm(hidden)
        both = mx.concatenate([self.input_layernorm(embedded), normed], axis=-1)
        hidden = (normed if self.normed_residual else hidden) + self.self_attn(both, cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class GemmaLayer(Layer):
    """Gemma4's form: norms behind both halves, too; the output is scaled by a stored scalar."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.self_attn = GemmaAttention(config)
        self.mlp = gemma4.MLP(config)
        for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            setattr(self, name, nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps))
        self.layer_scalar = mx.ones((1,))

    def __call__(self, embedded: mx.array, hidden: mx.array, cache: ContextCache) -> mx.array:
        """Rows e and g, [1, n, d] each -> [1, n, d]."""
        both = mx.concatenate([self.input_layernorm(embedded), self.hidden_norm(hidden)], axis=-1)
        hidden = hidden + self.post_attention_layernorm(self.self_attn(both, cache))
        fed = self.mlp(self.pre_feedforward_layernorm(hidden))
        return (hidden + self.post_feedforward_layernorm(fed)) * self.layer_scalar


# backbone form -> its layer
LAYERS: dict[str, Callable[[DrafterConfig], Layer]] = {
    "qwen3": Layer,
    "llama": Layer,
    "gemma4": GemmaLayer,
}


class Eagle3(TableUser):
    """An Eagle3 drafter. A row pairs position i's features with token i + 1."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        if config.num_hidden_layers != 1:
            raise UnsupportedError(
                f"an Eagle3 drafter with {config.num_hidden_layers} layers is not supported; "
                "one layer is"
            )
        width = config.hidden_size
        taps, eps = len(config.target_layer_ids), config.rms_norm_eps
        self.fc = nn.Linear(taps * width, width, bias=False)
        self.layers = [LAYERS[config.backbone](config)]
        if config.feature_norm == "joint":
            self.input_norm = nn.RMSNorm(taps * width, eps=eps)
        elif config.feature_norm == "each":
            self.fc_norm = [nn.RMSNorm(width, eps=eps) for _ in range(taps)]

    @property
    def block_size(self) -> int:
        """Most drafts of a proposal."""
        return self.config.block_size

    @property
    def ends_at_stop(self) -> bool:
        """A proposal ends with the first stop token in it."""
        return True

    def drafts_of(self, slots: int) -> int:
        """One draft per step."""
        return slots

    def start(self, window: int | None = None) -> StepContext:
        """An empty context."""
        return StepContext(len(self.layers), window)

    def extend(self, context: StepContext, features: list[mx.array], following: mx.array) -> None:
        """Run the layer on features ([n, d] per tapped layer) paired with the next tokens [n]."""
        rows = [f.astype(self.dtype) for f in features]
        if "fc_norm" in self:
            rows = [norm(row) for norm, row in zip(self.fc_norm, rows, strict=True)]
        stacked = mx.concatenate(rows, axis=-1)[None]
        if "input_norm" in self:
            stacked = self.input_norm(stacked)
        cache = context.cache
        out = self.layers[0](self.embed(following)[None], self.fc(stacked), cache)
        cache.forget(smallest(self.layers[0].self_attn.window, context.window))
        context.held = (cache.offset, out[0, -1:])

    def propose(
        self, context: StepContext, anchor: int, slots: int, count: int, pick: Pick
    ) -> Proposal:
        """See Drafter.propose; the anchor is already in the context's newest row."""
        tokens: list[mx.array] = []
        probs: list[mx.array | None] = []

        def draw(normed: mx.array) -> mx.array:
            token, q = self.to_target(*pick(self.logits(normed)))
            tokens.append(token)
            probs.append(q)
            return token

        self._steps(context, count, draw)
        return Proposal.of(tokens, probs)

    def forced_rows(self, context: StepContext, tokens: Sequence[int], count: int) -> mx.array:
        """See Drafter.forced_rows."""
        rows: list[mx.array] = []

        def given(normed: mx.array) -> mx.array:
            rows.append(normed)
            return mx.array([tokens[len(rows)]]) if len(rows) < len(tokens) else mx.array([0])

        self._steps(context, count, given)
        return mx.concatenate(rows)

    def forced_logits(self, hidden: mx.array, previous: mx.array) -> mx.array:
        """See Drafter.forced_logits; what came before is in the rows already."""
        return self.logits(hidden.reshape(-1, hidden.shape[-1])).reshape(*hidden.shape[:2], -1)

    def _steps(
        self, context: StepContext, count: int, token_of: Callable[[mx.array], mx.array]
    ) -> None:
        """Run the layer on its own output; `token_of` takes a row [1, d] to its token [1]."""
        assert context.newest is not None
        hidden: Any = context.newest
        cache = context.cache
        for k in range(count):
            normed = self.norm(hidden)
            token = token_of(normed)
            if k + 1 < count:
                handed = normed if self.config.norm_output else hidden
                hidden = self.layers[0](self.embed(token)[None], handed[None], cache)[0]
        cache.cut(context.length)
