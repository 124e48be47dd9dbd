"""Embedding and output head of a drafter: its own, or the target's."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.config import DrafterConfig


class Tables(Protocol):
    """What a drafter may borrow from its target."""

    def embed(self, ids: mx.array) -> mx.array:
        """Token ids [n] -> raw embedding rows [n, d]."""

    def head(self, hidden: mx.array) -> mx.array:
        """[n, d] -> raw logits [n, V]."""


class TableUser(nn.Module):
    """Base of drafter modules; `embed_tokens` and `lm_head` exist where the config says "own"."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.embeddings == "own":
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.head == "own":
            self.lm_head = nn.Linear(config.hidden_size, config.head_rows, bias=False)
        if config.draft_vocab_size is not None:
            self.draft_ids = mx.arange(config.draft_vocab_size)
        self._tables: Tables | None = None

    def bind(self, tables: Tables) -> None:
        """Borrow the target's tables where this drafter has none of its own."""
        self._tables = tables

    @property
    def head_ids(self) -> mx.array | None:
        """The target token of every head row, where the draft vocabulary is reduced."""
        return self.get("draft_ids")

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype this drafter computes in."""
        return self.norm.weight.dtype

    def embed(self, ids: mx.array) -> mx.array:
        """Token ids [n] -> [n, d], scaled as the config says."""
        own = "embed_tokens" in self
        rows = self.embed_tokens(ids) if own else self._bound.embed(ids).astype(self.dtype)
        if self.config.embedding_scale == 1.0:
            return rows
        # the reference rounds the factor to the weights' dtype first
        return rows * mx.array(self.config.embedding_scale, rows.dtype)

    def logits(self, hidden: mx.array) -> mx.array:
        """Rows after the final norm [n, d] -> base logits [n, head rows], scaled and capped."""
        logits = self.lm_head(hidden) if "lm_head" in self else self._bound.head(hidden)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.logit_softcap
        return logits if cap is None else cap * mx.tanh(logits / cap)

    def to_target(self, row: mx.array, probs: mx.array | None) -> tuple[mx.array, mx.array | None]:
        """A drawn head row [1] and its distribution [1, head rows], as token and over [1, V]."""
        if "draft_ids" not in self:
            return row, probs
        if probs is not None:
            everywhere = mx.zeros((1, self.config.vocab_size), probs.dtype)
            probs = everywhere.at[:, self.draft_ids].add(probs)
        return self.draft_ids[row], probs

    def row_of(self, token: int) -> mx.array:
        """The head row [1] that means a target token; row 0 where none does."""
        if "draft_ids" not in self:
            return mx.array([token])
        return mx.argmax(self.draft_ids == token).reshape(1)

    @property
    def _bound(self) -> Tables:
        if self._tables is None:
            raise RuntimeError("this drafter borrows the target's tables: call bind first")
        return self._tables
