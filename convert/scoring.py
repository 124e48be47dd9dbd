"""How well drafts fit the target, without the noise of decoding.

Every position of a text is an anchor; drafts are forced to be the text's own tokens, and the
chance that the target accepts each is computed from both distributions (method section 9.7).
One target forward serves every drafter that is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from dspark_mlx.drafters.base import Drafter
from dspark_mlx.targets.base import Target

BATCH = 16  # anchors whose logits are computed together
STRIDE = 3  # from anchor to anchor: neighbours, whose drafts overlap, tell little more


@dataclass(frozen=True)
class Text:
    """Token ids, and the position of its first anchor (at least 1)."""

    ids: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Trial:
    """One drafter's chances at temperature 1: `chances` [anchors, drafts], `blocks` [anchors].

    Anchors of the same number in `blocks` are neighbours, whose drafts overlap.
    """

    name: str
    chances: np.ndarray = field(repr=False)
    blocks: np.ndarray = field(repr=False)

    @property
    def accept_len(self) -> float:
        """Expected tokens per round, the bonus token included."""
        return float(1.0 + np.cumprod(self.chances, axis=1).sum(axis=1).mean())

    @property
    def anchors(self) -> int:
        """How many blocks were drafted."""
        return len(self.chances)

    def by_block(self, drafts: int) -> np.ndarray:
        """Chances of the first `drafts` drafts added up, mean over each block of anchors."""
        sums = self.chances[:, :drafts].sum(axis=1)
        return np.array([sums[self.blocks == b].mean() for b in np.unique(self.blocks)])


def score(
    target: Target, drafters: Mapping[str, Drafter], texts: Sequence[Text], stride: int = STRIDE
) -> list[Trial]:
    """Each named drafter over every text, anchor by anchor the same ones."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in drafters}
    blocks: list[int] = []
    longest = max(d.drafts_of(d.block_size) for d in drafters.values())
    for text in texts:
        anchors = range(text.first, len(text.ids) - longest + 1, stride)
        if not anchors:
            continue
        read = _Read.of(target, list(drafters.values()), text)
        for name, drafter in drafters.items():
            found[name] += list(read.chances(drafter, anchors))
        start = max(blocks, default=-1) + 1
        blocks += [start + (anchor - text.first) // longest for anchor in anchors]
    return [Trial(n, np.concatenate(c), np.array(blocks)) for n, c in found.items()]


@dataclass(frozen=True)
class _Read:
    """A text as the target reads it: its distributions [n, V] and the outputs of its layers."""

    text: Text
    probs: mx.array
    outputs: Mapping[int, mx.array]

    @classmethod
    def of(cls, target: Target, drafters: Sequence[Drafter], text: Text) -> _Read:
        layers = sorted({i for d in drafters for i in d.config.target_layer_ids})
        logits, outputs = target.tapped(layers)(mx.array(text.ids), target.new_cache())
        probs = mx.softmax(logits.astype(mx.float32), axis=-1)
        mx.eval(probs, outputs)
        return cls(text, probs, dict(zip(layers, outputs, strict=True)))

    def chances(self, drafter: Drafter, anchors: range) -> Iterator[np.ndarray]:
        """[some anchors, drafts] at a time."""
        ids, count = self.text.ids, drafter.drafts_of(drafter.block_size)
        context, known = drafter.start(), 0
        rows: list[mx.array] = []
        held: list[int] = []  # the anchors that `rows` belong to
        for anchor in anchors:
            self._extend(drafter, context, known, anchor)
            known = anchor
            held.append(anchor)
            rows.append(drafter.forced_rows(context, ids[anchor : anchor + count], count))
            mx.eval(rows[-1], *context.arrays())
            if len(rows) == BATCH or anchor == anchors[-1]:
                yield self._chances(drafter, mx.stack(rows), held)
                rows, held = [], []

    def _extend(self, drafter: Drafter, context: object, start: int, stop: int) -> None:
        features = [self.outputs[i][start:stop] for i in drafter.config.target_layer_ids]
        drafter.extend(context, features, mx.array(self.text.ids[start + 1 : stop + 1]))

    def _chances(self, drafter: Drafter, hidden: mx.array, anchors: list[int]) -> np.ndarray:
        at = mx.array(anchors)[:, None] + mx.arange(hidden.shape[1])[None]  # [a, n]
        logits = drafter.forced_logits(hidden, mx.array(self.text.ids)[at]).astype(mx.float32)
        p = drafter.over_drafted(self.probs)[at]
        return np.array(_overlap(logits, p, mx.logsumexp(logits, axis=-1, keepdims=True)))


def _overlap(logits: mx.array, p: mx.array, total: mx.array) -> mx.array:
    """sum over tokens of min(p, q), where log q = logits - total."""
    return mx.minimum(p, mx.exp(logits - total)).sum(axis=-1)
