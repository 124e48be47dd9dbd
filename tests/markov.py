"""A scripted target: its logits are a table lookup of the last two tokens, so p is known."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from dspark_mlx.memory import target_growth

from .fakes import RecordingTarget


class CallLog:
    """(cached positions, width) of every forward."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []


class MarkovLayer(nn.Module):
    """Adds the one-hot of the token before each position, which it knows from the cache only."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab = vocab

    def __call__(self, x, mask=None, cache=None):
        own = x[..., : self.vocab]  # [1, L, V]
        rows = own[:, None]
        keys = cache.update_and_fetch(rows, rows)[0] if cache is not None else rows
        padded = mx.concatenate([mx.eye(self.vocab)[:1], keys[0, 0]])  # before all: token 0
        return mx.concatenate([own, padded[None, -1 - own.shape[1] : -1]], axis=-1)


class MarkovBody(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, 2 * vocab)
        self.embed_tokens.weight = mx.eye(vocab, 2 * vocab)
        self.layers = [MarkovLayer(vocab)]

    def __call__(self, inputs, cache=None):
        hidden = self.embed_tokens(inputs)
        for layer, entry in zip(self.layers, cache or [None], strict=True):
            hidden = layer(hidden, None, entry)
        return hidden


class MarkovModel(nn.Module):
    """table [before, last, next] of logits; smaller ones are broadcast."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.vocab = table.shape[-1]
        self.model = MarkovBody(self.vocab)
        self.table = mx.array(np.broadcast_to(table, (self.vocab,) * 3).astype(np.float32))
        self.log = CallLog()
        mx.eval(self.parameters())

    @property
    def layers(self):
        return self.model.layers

    def __call__(self, inputs, cache=None):
        self.log.calls.append((cache[0].offset if cache else 0, inputs.shape[1]))
        hidden = self.model(inputs, cache)
        last, before = hidden[..., : self.vocab], hidden[..., self.vocab :]
        return self.table[mx.argmax(before, axis=-1), mx.argmax(last, axis=-1)]


def markov_target(table: np.ndarray) -> RecordingTarget:
    """A target with these logits; `.model.log.calls` records its forwards."""
    vocab = table.shape[-1]
    config = {"model_type": "markov", "hidden_size": 2 * vocab, "vocab_size": vocab}
    target = RecordingTarget(MarkovModel(table), config, "markov")
    target_growth(target)  # measured once per target; not to be counted among a run's forwards
    target.model.log.calls.clear()
    target.caches.clear()
    return target


def random_table(seed: int, vocab: int, spread: float = 2.0) -> np.ndarray:
    """Logits [V, V, V] whose rows differ, without ties."""
    return np.random.default_rng(seed).standard_normal((vocab,) * 3) * spread
