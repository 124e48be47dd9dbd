"""Does the drafter do best as its config states it? Shifted taps and slots are tried too.

A wrong guess about either loads cleanly and then accepts about one token per round; only
acceptance shows it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from typing import Any

import numpy as np

from dspark_mlx.api import generate
from dspark_mlx.config import DrafterConfig
from dspark_mlx.convert.generations import asked, generate_batch, sampler
from dspark_mlx.convert.scoring import Text, Trial, score
from dspark_mlx.drafters.packing import BACKBONE, PARTS, part_of
from dspark_mlx.errors import UnsupportedError
from dspark_mlx.options import OptionArgs
from dspark_mlx.pair import Pair
from dspark_mlx.prompts import BUILT_IN
from dspark_mlx.targets.base import Target

STATED, SOURCE = "as stated", "source"
VOCABULARY = ("lm_head", "markov_head", "draft_ids", "_kept")
SEED, TEMPERATURE = 7, 0.5  # of the texts: what drafters are trained on is about as sure of itself
ANSWERS, TOKENS = 12, 96  # to the built-in prompts in turn, and how many tokens each
BEFORE = 24  # of the prompt's own tokens, the last, are scored too
TRIES, SHORT = 16, 12  # texts from nothing: so many are tried, those of fewer tokens left out
CERTAIN = 3.0  # standard errors of the paired difference
MARGIN = 0.01  # and at least so much of what is measured as stated


@dataclass(frozen=True)
class Findings:
    """What was measured: conventions, the stated one first; where something was given up, the
    source; and where several parts were, the source with each alone as it is now."""

    conventions: list[Trial]
    source: Trial | None = None
    parts: list[Trial] = field(default_factory=list)

    @property
    def warning(self) -> str | None:
        """See `verdict`."""
        return verdict(self.conventions)


def self_test(pair: Pair, source: Callable[[], Any] | None) -> Findings:
    """Try a pair's drafter; `source` loads the drafter it was made from, where they differ."""
    texts = sample_texts(pair)
    conventions = try_conventions(pair.target, pair.drafter, texts)
    if source is None:
        return Findings(conventions)
    whole, *parts = try_parts(pair.target, source(), pair.drafter, texts)
    return Findings(conventions, whole, parts)


def sample_texts(pair: Pair, tokens: int = TOKENS) -> list[Text]:
    """Texts that the target samples: after the built-in prompts, and from nothing.

    What a model that knows no chat says from nothing is its own kind of text, whatever it was
    trained for; it makes up for answers that end early.
    """
    mixed = chain.from_iterable(zip(*BUILT_IN.values(), strict=False))  # kind after kind
    questions = [asked(pair, prompt) for prompt in islice(cycle(mixed), ANSWERS)]
    answers = _sampled(pair, questions, tokens)
    texts = [
        Text(tuple(ids + more), max(len(ids) - BEFORE, 1))
        for ids, more in zip(questions, answers, strict=True)
    ]
    missing = len(questions) * tokens - sum(map(len, answers))
    start = pair.tokenizer.bos_token_id
    if start is None or missing <= tokens:
        return texts
    for more in _sampled(pair, [[start]] * TRIES, 2 * tokens):
        if len(more) >= SHORT and missing > 0:
            texts.append(Text((start, *more), 1))
            missing -= len(more)
    return texts


def _sampled(pair: Pair, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """A continuation of each prompt; all at once where mlx-lm can do that for the target."""
    try:
        return generate_batch(pair, prompts, tokens, sampler(SEED, TEMPERATURE))
    except UnsupportedError:
        plain = Pair(pair.target, None, pair.tokenizer, pair.thinking, pair.stop_ids)
        options = OptionArgs(max_tokens=tokens, temperature=TEMPERATURE)
        return [generate(plain, ids, seed=k, **options).tokens for k, ids in enumerate(prompts)]


def try_conventions(target: Target, drafter: Any, texts: Sequence[Text]) -> list[Trial]:
    """The stated convention first, then each other one that the target's depth allows."""
    drafters = {STATED: drafter}
    for name, config in other_conventions(drafter.config, target.depth):
        drafters[name] = copy.copy(drafter)  # shares every weight
        drafters[name].config = config
    return score(target, drafters, texts)


def other_conventions(config: DrafterConfig, depth: int) -> Iterator[tuple[str, DrafterConfig]]:
    """Taps one layer earlier or later; for block drafters, prediction from the other slot."""
    for shift in (-1, 1):
        ids = tuple(i + shift for i in config.target_layer_ids)
        if ids[0] >= -1 and ids[-1] < depth:
            yield f"taps {shift:+d} layer", dataclasses.replace(config, target_layer_ids=ids)
    if config.mask_token_id is not None and config.block_size > 1:
        slot = 1 - min(config.predict_from_slot, 1)
        yield f"from slot {slot}", dataclasses.replace(config, predict_from_slot=slot)


def verdict(trials: Sequence[Trial]) -> str | None:
    """A warning when another convention is certainly better than the stated one, or None.

    Compared is the chance of each draft apart, added up: less noisy than accept length, in
    which a late draft counts only where all before it are taken. Neighbouring anchors draft
    the same tokens, so the error is that of means over blocks of them.
    """
    stated = trials[0]
    drafts = min(trial.chances.shape[1] for trial in trials)
    as_stated = stated.by_block(drafts)
    for other in sorted(trials[1:], key=lambda t: -t.accept_len):
        gains = other.by_block(drafts) - as_stated
        error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else np.inf
        least = max(CERTAIN * error, MARGIN * as_stated.mean())
        if gains.mean() > least and other.accept_len > stated.accept_len:
            return (
                f"the stated convention is probably wrong: {other.name} accepts "
                f"{other.accept_len:.2f} tokens per round, as stated {stated.accept_len:.2f}"
            )
    return None


def try_parts(target: Target, source: Any, result: Any, texts: Sequence[Text]) -> list[Trial]:
    """The source, then the source with one part at a time as conversion left it.

    Parts are tried where several were changed; with one, the result itself shows it.
    """
    drafters, changed = {SOURCE: source}, _changed(source, result)
    for part, names in changed.items() if len(changed) > 1 else ():
        drafters[part] = mixed = copy.copy(source)
        for name in names:
            mixed[name] = result[name]
    return score(target, drafters, texts)


def _changed(source: Any, result: Any) -> dict[str, list[str]]:
    """Part -> names of its modules, for parts that were quantized or cut.

    The tables of a reduced vocabulary belong together and count as one part.
    """
    packed = {part_of(path) for path in (result.config.quantization or {}).get("modules", ())}
    cut = result.config.draft_vocab_size != source.config.draft_vocab_size
    tables = {part: [name] for part, name in PARTS.items() if part in packed and name in result}
    if cut:
        tables.pop("head", None)
        tables.pop("markov", None)
        tables["vocabulary"] = [name for name in VOCABULARY if name in result]
    if BACKBONE in packed:
        apart = {*PARTS.values(), *VOCABULARY}
        tables[BACKBONE] = [name for name in result if name not in apart and name[0] != "_"]
    return tables
