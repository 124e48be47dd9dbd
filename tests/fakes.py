"""Doubles for the decode loop: tiny targets, a byte tokenizer and a drafter that plays a script."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map_with_path
from mlx_lm.generate import generate_step

from dspark_mlx.cache import TargetCache
from dspark_mlx.cache.kinds import leaves
from dspark_mlx.config import ConfidenceConfig, DrafterConfig, RopeConfig
from dspark_mlx.costs import CostCurve
from dspark_mlx.drafters.base import Pick, Proposal
from dspark_mlx.pair import Pair
from dspark_mlx.targets.base import Target


def offsets(cache: TargetCache) -> set[int]:
    """The positions that each of mlx-lm's caches says it holds; recurrent ones say nothing."""
    return {leaf.offset for leaf in leaves(cache.entries) if hasattr(leaf, "offset")}


class ByteTokenizer:
    """Every id is a piece of bytes; without `pieces`, printable ASCII from the space on."""

    bos_token = None
    has_chat_template = False

    def __init__(self, pieces: Sequence[bytes] | None = None, eos: Sequence[int] = ()) -> None:
        self.pieces = list(pieces or (bytes([32 + i]) for i in range(95)))
        self.eos_token_ids = set(eos)

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")

    def encode(self, text, add_special_tokens=True):
        return [self.pieces.index(bytes([byte])) for byte in text.encode()]


class RecordingTarget(Target):
    """A target that remembers the caches it handed out, so that a drafter can look at its own."""

    def __init__(self, model, config, name="fake target"):
        super().__init__(model, config, name)
        self.caches: list[TargetCache] = []

    def new_cache(self, *args, **kwargs):
        self.caches.append(super().new_cache(*args, **kwargs))
        return self.caches[-1]


def seeded_weights(module: nn.Module, seed: int, gains: dict[str, float] | None = None) -> None:
    """Set matrices to normal numbers over sqrt(width), times the gain their name ends in."""
    numbers = np.random.default_rng(seed)

    def weight(path, old):
        if old.ndim < 2:
            return (mx.ones_like if "norm" in path or "scalar" in path else mx.zeros_like)(old)
        gain = next((g for name, g in (gains or {}).items() if name in path), 1.0)
        values = numbers.standard_normal(old.shape) * gain / old.shape[-1] ** 0.5
        return mx.array(values.astype(np.float32))

    module.update(tree_map_with_path(weight, module.parameters()))
    mx.eval(module.parameters())


def tiny_target(seed: int, form: str = "qwen3", vocab: int = 80, **changes: Any) -> RecordingTarget:
    """A random model of mlx-lm's own class, float32, with logits spread far above the noise."""
    config = {
        "model_type": form, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": vocab,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    } | changes  # fmt: skip
    module = importlib.import_module(f"mlx_lm.models.{form}")
    model = module.Model(module.ModelArgs.from_dict(config))
    gains = {"embed_tokens": 4.0, "lm_head": 4.0, "o_proj": 2.0, "down_proj": 2.0}
    seeded_weights(model, seed, gains)
    return RecordingTarget(model, config)


@dataclass(frozen=True)
class Plain:
    """Greedy decoding by mlx-lm's own loop: one entry per generated token."""

    prompt: tuple[int, ...]
    tokens: list[int]
    second: list[int]  # the target's second choice
    logprobs: list[float]
    margin: float  # the closest decision of all

    def until(self, limit: int, stops: Sequence[int] = ()) -> tuple[list[int], str]:
        """The tokens and finish reason that a limit and a set of stop tokens leave."""
        for k, token in enumerate(self.tokens[:limit]):
            if token in stops:
                return self.tokens[: k + 1], "stop"
        assert limit <= len(self.tokens)
        return self.tokens[:limit], "length"


def plain(target: Target, prompt: Sequence[int], count: int, **settings: Any) -> Plain:
    """Decode with mlx_lm.generate.generate_step."""
    steps = generate_step(mx.array(prompt), target.model, max_tokens=count, **settings)
    ids, rows = zip(*[(t, np.array(row.astype(mx.float32))) for t, row in steps], strict=True)
    order = [np.argsort(row)[::-1] for row in rows]
    gaps = [row[o[0]] - row[o[1]] for row, o in zip(rows, order, strict=True)]
    logprobs = [float(row[t]) for t, row in zip(ids, rows, strict=True)]
    return Plain(tuple(prompt), list(ids), [int(o[1]) for o in order], logprobs, float(min(gaps)))


# (absolute position of the draft, its number in the block, the token before it [1])
# -> logits [1, V] to draw the draft from
Script = Callable[[int, int, mx.array], mx.array]


def says(choose: Callable[[int, int], int], vocab: int) -> Script:
    """A script that all but always draws the token that `choose(position, k)` names."""
    rows = 60.0 * mx.eye(vocab)
    mx.eval(rows)
    return lambda position, k, previous: rows[choose(position, k) % vocab][None]


def scripts(reference: Plain, vocab: int) -> dict[str, Script]:
    """Drafters from perfect to hopeless, around a recorded greedy continuation."""
    first = len(reference.prompt)

    def at(values: list[int], position: int) -> int:
        return values[position - first] if position - first < len(values) else 0

    def right(position: int, k: int) -> int:
        return at(reference.tokens, position)

    def wrong(position: int, k: int) -> int:
        return right(position, k) + 1

    def up_to(count: int) -> Script:
        return says(lambda p, k: right(p, k) if k < count else wrong(p, k), vocab)

    return {
        "oracle": says(right, vocab),
        "wrong": says(wrong, vocab),
        **{f"first {count} right": up_to(count) for count in range(8)},
        "random": says(lambda p, k: (p * 7919 + k * 104729) % 1009, vocab),
        "random or right": says(lambda p, k: right(p, k) if p * 37 % 5 else p, vocab),
        "second choice": says(lambda p, k: at(reference.second, p), vocab),
    }


@dataclass
class Memory:
    """What the loop told a ScriptedDrafter about one generation."""

    cache: TargetCache
    length: int = 0
    window: int | None = None
    features: list[list[mx.array]] = field(default_factory=list)
    following: list[mx.array] = field(default_factory=list)
    proposals: list[tuple[int, int, int]] = field(default_factory=list)  # position, slots, count

    def cut(self, length):
        if length >= self.length:
            return
        following = mx.concatenate(self.following)[:length]
        rows = [mx.concatenate([f[layer] for f in self.features])[:length]
                for layer in range(len(self.features[0]))]  # fmt: skip
        self.length = length
        self.features, self.following = ([rows], [following]) if length else ([], [])

    def arrays(self):
        return [f for features in self.features[-1:] for f in features]

    def copy(self):
        return Memory(
            self.cache, self.length, self.window, list(self.features), list(self.following)
        )


class ScriptedDrafter:
    """Plays a script, and checks at every call that the loop keeps its side of the contract."""

    ends_at_stop = False
    head_ids = None

    def __init__(
        self,
        target: RecordingTarget,
        script: Script,
        *,
        block: int = 7,
        confidence: Callable[[list[mx.array]], mx.array] | None = None,
        layers: tuple[int, ...] = (0,),
        limit: int | None = None,
    ) -> None:
        self.target, self.script, self._confidence = target, script, confidence
        self.memories: list[Memory] = []
        self.config = DrafterConfig(
            kind="scripted", backbone="none", hidden_size=target.hidden_size,
            intermediate_size=1, num_hidden_layers=1, num_attention_heads=1,
            num_key_value_heads=1, head_dim=1, rms_norm_eps=1e-6, vocab_size=target.vocab_size,
            rope=RopeConfig(1e4), block_size=block, mask_token_id=0, target_layer_ids=layers,
            num_target_layers=target.depth, max_position_embeddings=limit,
            confidence=ConfidenceConfig(True) if confidence else None,
        )  # fmt: skip

    @property
    def block_size(self):
        return self.config.block_size

    def drafts_of(self, slots):
        return slots

    def start(self, window=None):
        self.memories.append(Memory(self.target.caches[-1], window=window))
        return self.memories[-1]

    def extend(self, context, features, following):
        rows = following.shape[0]
        assert rows > 0
        assert [f.shape for f in features] == [(rows, self.config.hidden_size)] * len(
            self.config.target_layer_ids
        )
        context.length += rows
        context.features.append(features)
        context.following.append(following)

    def propose(self, context, anchor, slots, count, pick: Pick) -> Proposal:
        assert 1 <= count <= slots <= self.block_size
        assert context.length == context.cache.length
        assert offsets(context.cache) <= {context.length}
        context.proposals.append((context.length, slots, count))
        previous, tokens, probs = mx.array([anchor]), [], []
        for k in range(count):
            previous, q = pick(self.script(context.length + 1 + k, k, previous))
            tokens.append(previous)
            probs.append(q)
        return Proposal(
            mx.concatenate(tokens),
            None if probs[0] is None else mx.concatenate(probs),
            self._confidence(tokens) if self._confidence else None,
        )

    def check(self, tokens: Sequence[int]) -> Memory:
        """The latest generation told every position but the last of `tokens` once, in order."""
        memory = self.memories[-1]
        assert memory.length == memory.cache.length == len(tokens) - 1
        assert mx.concatenate(memory.following).tolist() == list(tokens[1:])
        if self.target.kv is not None:
            return memory  # one pass over all tokens would see nothing of the quantized cache
        tapped = self.target.tapped(self.config.target_layer_ids)
        _, want = tapped(mx.array(tokens[:-1]), TargetCache(self.target.model))
        for layer, rows in enumerate(want):
            ours = mx.concatenate([features[layer] for features in memory.features])
            np.testing.assert_allclose(np.array(ours), np.array(rows), atol=2e-4, rtol=1e-3)
        return memory


def sure(probability: float) -> Callable[[list[mx.array]], mx.array]:
    """The same confidence for every draft."""
    logit = float(np.log(probability / (1.0 - probability)))
    return lambda tokens: mx.full((len(tokens),), logit)


def falling(tokens: list[mx.array]) -> mx.array:
    """Confidences 0.9, 0.8, ... one per draft."""
    c = np.clip(0.9 - 0.1 * np.arange(len(tokens)), 0.05, 1.0)
    return mx.array(np.log(c / (1 - c)).astype(np.float32))


def pair_with(target, drafter=None, stops=(), pieces=None, curve=None) -> Pair:
    """A pair around a fake target; its cost curve is given, so that nothing is measured."""
    pair = Pair(target, drafter, ByteTokenizer(pieces, stops), None, frozenset(stops))
    if drafter is not None:
        pair.tuning.add_curve(0, curve or flat_curve(drafter.drafts_of(drafter.block_size)))
    return pair


def flat_curve(drafts: int) -> CostCurve:
    """A machine on which more rows cost nothing and drafting next to nothing."""
    return CostCurve((0.01,) * (drafts + 1), (0.0001,) * drafts, look=0.0001)
