"""Does the drafter do best as its config states it? Shifted taps and slots are tried too.

A wrong guess about either loads cleanly and then accepts about one token per round; only
acceptance shows it. It is measured without the noise of decoding: on text that the target
itself samples, every position is an anchor, drafts are teacher-forced, and the chance that the
target accepts each is computed from both distributions (method section 9.7).
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from dspark_mlx.api import generate
from dspark_mlx.config import DrafterConfig
from dspark_mlx.pair import Pair
from dspark_mlx.prompt import prompt_ids
from dspark_mlx.prompts import BUILT_IN
from dspark_mlx.targets.base import Target

STATED = "as stated"
TOKENS = 24  # sampled per prompt; each is one anchor
TRIES, SHORT = 24, 8  # texts from nothing: so many are tried, those of so few tokens left out
CERTAIN = 3.0  # standard errors of the paired difference
MARGIN = 0.01  # and at least so much of the stated accept length


@dataclass(frozen=True)
class Trial:
    """One convention and its expected accept length at temperature 1, by anchor."""

    name: str
    by_anchor: tuple[float, ...] = field(repr=False)

    @property
    def accept_len(self) -> float:
        """Mean over the anchors, the bonus token included."""
        return statistics.fmean(self.by_anchor)


def sample_texts(pair: Pair, tokens: int = TOKENS) -> list[list[int]]:
    """Token ids that the target samples: after a built-in prompt of each kind, and from nothing.

    What it says from nothing is its own kind of text, whatever it was trained for.
    """
    plain = Pair(pair.target, None, pair.tokenizer, pair.thinking, pair.stop_ids)
    asked = [
        prompt_ids(pair, messages=[{"role": "user", "content": texts[0]}])
        if pair.tokenizer.has_chat_template
        else prompt_ids(pair, texts[0])
        for texts in BUILT_IN.values()
    ]
    texts = [_continued(plain, ids, tokens, seed=0) for ids in asked]
    start, missing = pair.tokenizer.bos_token_id, 2 * len(asked) * tokens
    for seed in range(TRIES if start is not None else 0):
        text = _continued(plain, [start], 2 * tokens, seed)
        if len(text) > SHORT and missing > 0:
            texts.append(text)
            missing -= len(text)
    return texts


def _continued(pair: Pair, ids: list[int], tokens: int, seed: int) -> list[int]:
    return ids + generate(pair, ids, max_tokens=tokens, temperature=1.0, seed=seed).tokens


def accept_length(
    target: Target, drafter: Any, texts: list[list[int]], name: str = STATED
) -> Trial:
    """Expected accept length after each of the last positions of every text."""
    values: list[float] = []
    for ids in texts:
        values += _by_anchor(target, drafter, ids, max(len(ids) - 2 * TOKENS, 1))
    return Trial(name, tuple(values))


def try_conventions(target: Target, drafter: Any, texts: list[list[int]]) -> list[Trial]:
    """The stated convention first, then each other one that the target's depth allows."""
    trials = [accept_length(target, drafter, texts)]
    for name, config in other_conventions(drafter.config):
        other = copy.copy(drafter)  # shares every weight
        other.config = config
        trials.append(accept_length(target, other, texts, name))
    return trials


def other_conventions(config: DrafterConfig) -> Iterator[tuple[str, DrafterConfig]]:
    """Taps one layer earlier or later; for block drafters, prediction from the other slot."""
    for shift in (-1, 1):
        ids = tuple(i + shift for i in config.target_layer_ids)
        if ids[0] >= -1 and ids[-1] < config.num_target_layers:
            yield f"taps {shift:+d} layer", dataclasses.replace(config, target_layer_ids=ids)
    if config.mask_token_id is not None and config.block_size > 1:
        slot = 1 - min(config.predict_from_slot, 1)
        yield f"from slot {slot}", dataclasses.replace(config, predict_from_slot=slot)


def verdict(trials: list[Trial]) -> str | None:
    """A warning when another convention is certainly better than the stated one, or None."""
    stated = trials[0]
    for other in sorted(trials[1:], key=lambda t: -t.accept_len):
        gains = [b - a for a, b in zip(stated.by_anchor, other.by_anchor, strict=True)]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        if statistics.fmean(gains) > max(CERTAIN * error, MARGIN * stated.accept_len):
            return (
                f"the stated convention is probably wrong: {other.name} accepts "
                f"{other.accept_len:.2f} tokens per round, as stated {stated.accept_len:.2f}"
            )
    return None


def _by_anchor(target: Target, drafter: Any, ids: list[int], first: int) -> list[float]:
    tapped = target.tapped(drafter.config.target_layer_ids)
    logits, features = tapped(mx.array(ids), target.new_cache())
    probabilities = mx.softmax(logits.astype(mx.float32), axis=-1)  # [n, V]
    context = drafter.start()
    drafter.extend(context, [rows[:first] for rows in features], mx.array(ids[1 : first + 1]))
    values = []
    for s in range(first, len(ids)):
        values.append(_expected(drafter, context, ids, s, probabilities))
        mx.eval(values[-1])
        if s + 1 < len(ids):
            rows = [row[s : s + 1] for row in features]
            drafter.extend(context, rows, mx.array(ids[s + 1 : s + 2]))
    return [float(v.item()) for v in values]


def _expected(drafter: Any, context: Any, ids: list[int], s: int, p: mx.array) -> mx.array:
    """1 + sum over k of the chance that drafts 1..k after anchor position s are all accepted."""
    coming = ids[s + 1 :]
    count = min(drafter.drafts_of(drafter.block_size), len(ids) - s)
    step = iter(range(count))

    def forced(logits: mx.array) -> tuple[mx.array, mx.array]:
        k = next(step)
        token = coming[k] if k < len(coming) else 0
        return drafter.row_of(token), mx.softmax(logits.astype(mx.float32), axis=-1)

    q = drafter.propose(context, ids[s], drafter.block_size, count, forced).probs
    accepted = mx.minimum(p[s : s + count], q).sum(axis=-1)  # [count]
    return 1.0 + mx.cumprod(accepted).sum()
