"""DSpark: a parallel block backbone, then a serial head and a confidence per draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.config import DrafterConfig
from dspark_mlx.heads import build_head
from dspark_mlx.heads.confidence import ConfidenceHead

from . import gemma4, qwen3
from .base import Pick, Proposal
from .context import Context
from .tables import TableUser

# backbone form -> its layer
LAYERS: dict[str, Callable[[DrafterConfig, int], Any]] = {
    "qwen3": qwen3.Layer,
    "gemma4": gemma4.Layer,
}


class BlockContext(Context):
    """Per layer, keys and values of committed positions; the newest may still be pending."""

    @property
    def pending(self) -> mx.array | None:
        """Projected features [1, n, d] that no layer has seen yet."""
        return self.held[1]

    @property
    def length(self) -> int:
        """Committed positions covered, pending ones included."""
        return self.absorbed + (0 if self.pending is None else self.pending.shape[1])

    def cut(self, length: int) -> None:
        """Cover only the first `length` positions."""
        if self.pending is not None and self.absorbed < length < self.length:
            self.held = (self.absorbed, self.pending[:, : length - self.absorbed])
        else:
            super().cut(length)


class BlockOutput(NamedTuple):
    """What one backbone pass gives for the slots asked for: n rows each, lazy."""

    hidden: mx.array  # [n, d], after the final norm
    logits: mx.array  # [n, V], before the sequential head


class DSpark(TableUser):
    """A DSpark drafter of any backbone form. Without heads it is DeepSpec's DFlash."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        layer = LAYERS[config.backbone]
        self.layers = [layer(config, i) for i in range(config.num_hidden_layers)]
        if (head := build_head(config)) is not None:
            self.markov_head = head
        if config.confidence is not None:
            self.confidence_head = ConfidenceHead(config)

    @property
    def ends_at_stop(self) -> bool:
        """A block is drafted whole, whatever tokens are in it."""
        return False

    @property
    def block_size(self) -> int:
        """Slots of a full block."""
        return self.config.block_size

    def drafts_of(self, slots: int) -> int:
        """Every slot predicts, the anchor's own included."""
        return slots - self.config.predict_from_slot

    def start(self, window: int | None = None) -> BlockContext:
        """An empty context."""
        return BlockContext(len(self.layers), window)

    def extend(self, context: BlockContext, features: list[mx.array], following: mx.array) -> None:
        """Project features (one [n, d] per tapped layer) and keep them for the next block."""
        if context.pending is not None:
            for layer, cache in zip(self.layers, context.caches, strict=True):
                layer.self_attn.absorb(context.pending, cache)
        stacked = mx.concatenate(features, axis=-1)[None].astype(self.dtype)
        context.held = (context.length, self.hidden_norm(self.fc(stacked)))

    def propose(
        self, context: BlockContext, anchor: int, slots: int, count: int, pick: Pick
    ) -> Proposal:
        """See Drafter.propose."""
        block = self.run_block(context, anchor, slots, count)
        return self.draw(block, anchor, pick)

    def run_block(self, context: BlockContext, anchor: int, slots: int, count: int) -> BlockOutput:
        """One parallel pass over [anchor, MASK x (slots - 1)]; the head only on `count` rows."""
        mask = self.config.mask_token_id
        assert mask is not None
        ids = mx.array([anchor] + [mask] * (slots - 1))
        rows = self.embed(ids)[None]
        for layer, cache in zip(self.layers, context.caches, strict=True):
            rows = layer(rows, context.pending, cache)
        context.held = (context.length, None)
        first = self.config.predict_from_slot
        hidden = self.norm(rows[0, first : first + count])
        return BlockOutput(hidden, self.logits(hidden))

    def draw(self, block: BlockOutput, anchor: int, pick: Pick) -> Proposal:
        """Serial pass: each draft's logits are corrected by the draft before it."""
        head = self.get("markov_head")
        state = head.start() if head else None
        previous = mx.array([anchor])
        tokens, probs, embedded = [], [], []
        for k in range(block.hidden.shape[0]):
            logits = block.logits[k : k + 1]
            if head:
                embedded.append(head.embed(self.known(previous)))
                bias, state = head.bias(state, embedded[-1], block.hidden[k : k + 1])
                logits = logits + self.draftable(bias)
            previous, q = self.to_target(*pick(logits))
            tokens.append(previous)
            probs.append(q)
        return Proposal.of(tokens, probs, self.confidence(block.hidden, embedded))

    def forced_rows(self, context: BlockContext, tokens: Sequence[int], count: int) -> mx.array:
        """See Drafter.forced_rows; a block's rows do not depend on its drafts."""
        return self.run_block(context, tokens[0], self.block_size, count).hidden

    def forced_logits(self, hidden: mx.array, previous: mx.array) -> mx.array:
        """See Drafter.forced_logits."""
        blocks, count, width = hidden.shape
        base = self.logits(hidden.reshape(-1, width)).reshape(blocks, count, -1)
        if (head := self.get("markov_head")) is None:
            return base
        state, biases = head.start(), []
        for k in range(count):
            embedded = head.embed(self.known(previous[:, k]))
            bias, state = head.bias(state, embedded, hidden[:, k])
            biases.append(self.draftable(bias))
        return base + mx.stack(biases, axis=1)

    def confidence(self, hidden: mx.array, embedded: list[mx.array]) -> mx.array | None:
        """Confidence logits [n], or None without a confidence head."""
        if "confidence_head" not in self:
            return None
        return self.confidence_head(hidden, mx.concatenate(embedded) if embedded else None)
