"""Embedding and output head of a drafter: its own, or the target's."""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from dspark_mlx.config import DrafterConfig
from dspark_mlx.errors import PairError


class Tables(Protocol):
    """What a drafter has to know, or may borrow, of its target."""

    @property
    def vocab_size(self) -> int:
        """Columns V of the target's distribution."""

    def embed(self, ids: mx.array) -> mx.array:
        """Token ids [n] -> raw embedding rows [n, d]."""

    def head(self, hidden: mx.array) -> mx.array:
        """[n, d] -> raw logits [n, V]."""


class TableUser(nn.Module):
    """Base of drafter modules; `embed_tokens` and `lm_head` exist where the config says "own".

    The target's vocabulary may be padded otherwise than the drafter's: only tokens that both
    have are drafted, and distributions are over the target's.
    """

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
        self._vocabulary = config.vocab_size  # of the target, once one is bound
        self._kept: mx.array | None = None  # [rows] of the head, where a map leads too far

    def bind(self, tables: Tables) -> None:
        """Learn the target's vocabulary, and borrow its tables where there are none of its own.

        Raises PairError where the two have no draftable token in common.
        """
        self._tables = tables
        self._vocabulary = tables.vocab_size
        self._kept = None
        if "draft_ids" in self and self._vocabulary < self.config.vocab_size:
            ids: Any = self.draft_ids.tolist()
            kept = [k for k, i in enumerate(ids) if i < self._vocabulary]
            if not kept:
                raise PairError("none of the tokens that this drafter drafts is in the target")
            self._kept = mx.array(kept)
            mx.eval(self._kept)

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
        if own:
            rows = self.embed_tokens(self.known(ids))
        else:
            rows = self._bound.embed(ids).astype(self.dtype)
        if self.config.embedding_scale == 1.0:
            return rows
        # the reference rounds the factor to the weights' dtype first
        return rows * mx.array(self.config.embedding_scale, rows.dtype)

    def known(self, ids: mx.array) -> mx.array:
        """Token ids as rows of the drafter's own tables: padding behind their end is the last."""
        if self._vocabulary <= self.config.vocab_size:
            return ids
        return mx.minimum(ids, self.config.vocab_size - 1)

    def logits(self, hidden: mx.array) -> mx.array:
        """Rows after the final norm [n, d] -> base logits [n, draftable rows], scaled, capped."""
        logits = self.lm_head(hidden) if "lm_head" in self else self._bound.head(hidden)
        logits = self.draftable(logits)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.logit_softcap
        return logits if cap is None else cap * mx.tanh(logits / cap)

    def draftable(self, logits: mx.array) -> mx.array:
        """The columns of [n, head rows] that mean tokens which the target has, too."""
        if self._kept is not None:
            return logits[:, self._kept]
        if "draft_ids" in self:
            return logits
        return logits if logits.shape[-1] == self._shared else logits[:, : self._shared]

    def to_target(self, row: mx.array, probs: mx.array | None) -> tuple[mx.array, mx.array | None]:
        """A drawn draftable row [1] and its distribution, as token and over the target's [1, V]."""
        if "draft_ids" not in self:
            if probs is not None and (short := self._vocabulary - probs.shape[-1]):
                probs = mx.pad(probs, [(0, 0), (0, short)])
            return row, probs
        ids = self._map
        if probs is not None:
            everywhere = mx.zeros((1, self._vocabulary), probs.dtype)
            probs = everywhere.at[:, ids].add(probs)
        return ids[row], probs

    def over_drafted(self, probs: mx.array) -> mx.array:
        """See Drafter.over_drafted."""
        if "draft_ids" in self:
            return probs[..., self._map]
        return probs if probs.shape[-1] == self._shared else probs[..., : self._shared]

    @property
    def _map(self) -> mx.array:
        """The token of every draftable row."""
        return self.draft_ids if self._kept is None else self.draft_ids[self._kept]

    @property
    def _shared(self) -> int:
        """Tokens that both vocabularies have room for."""
        return min(self._vocabulary, self.config.vocab_size)

    @property
    def _bound(self) -> Tables:
        if self._tables is None:
            raise RuntimeError("this drafter borrows the target's tables: call bind first")
        return self._tables
