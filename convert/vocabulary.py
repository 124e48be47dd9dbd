"""A cheaper drafter: its head and Markov output table cut to the most useful tokens.

Still lossless, since the target verifies every draft; a token that is not kept is just never
drafted. Reading these tables is most of a small drafter's work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from dspark_mlx.config import DrafterConfig
from dspark_mlx.convert.corpus import Corpus, Progress, built_in_texts, count_tokens
from dspark_mlx.errors import OptionError
from dspark_mlx.loading import load_tokenizer
from dspark_mlx.targets.base import Target

HEAD, OUTPUT = "lm_head.weight", "markov_head.markov_w2.weight"


def most_useful(
    folder: Path, vocabulary: int, size: int, corpus: Corpus, progress: Progress | None = None
) -> list[int]:
    """The `size` of `vocabulary` token ids to keep for the target in `folder`, by counts."""
    tokenizer, stops = load_tokenizer(folder)
    always = always_kept(tokenizer, stops)
    check_size(size, always, vocabulary)  # before the long part
    counts = corpus.counts(folder, tokenizer, progress)
    ties = count_tokens(built_in_texts(), tokenizer)
    return choose_tokens(counts, size, vocabulary, always, ties)


def check_size(size: int, always: Iterable[int], vocabulary: int) -> None:
    """Raise OptionError when `size` is no proper part of the vocabulary, or leaves out `always`."""
    kept = {t for t in always if 0 <= t < vocabulary}
    if not len(kept) <= size < vocabulary:
        raise OptionError(
            f"--draft-vocab {size} must lie between the {len(kept)} tokens that are always kept "
            f"and the vocabulary of {vocabulary}"
        )


def choose_tokens(
    counts: Mapping[int, int],
    size: int,
    vocabulary: int,
    always: Iterable[int],
    ties: Mapping[int, int] | None = None,
) -> list[int]:
    """`size` token ids, ascending: `always`, then the most counted.

    Among equals those with more in `ties` come first, then lower ids: byte-pair vocabularies
    are numbered by frequency.
    """
    check_size(size, always, vocabulary)
    kept = {t for t in always if 0 <= t < vocabulary}
    ties = ties or {}
    ranked = sorted(
        (t for t in range(vocabulary) if t not in kept),
        key=lambda t: (-counts.get(t, 0), -ties.get(t, 0), t),
    )
    return sorted(kept | set(ranked[: size - len(kept)]))


def always_kept(tokenizer: Any, stop_ids: Iterable[int]) -> set[int]:
    """Stop tokens, special tokens, and what the chat template itself writes."""
    kept = set(stop_ids) | set(tokenizer.all_special_ids)
    if tokenizer.has_chat_template:
        talk = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        text = tokenizer.apply_chat_template(talk, tokenize=False)
        kept |= set(tokenizer.encode(text, add_special_tokens=False))
    return kept


def reduce_vocabulary(
    weights: Mapping[str, mx.array], config: DrafterConfig, ids: list[int], target: Target | None
) -> tuple[dict[str, mx.array], DrafterConfig]:
    """Weights and config of the same drafter with a head of `len(ids)` rows.

    A drafter that borrows the target's head gets the kept rows of it.
    """
    rows = mx.array(ids)
    reduced = dict(weights)
    reduced[HEAD] = _head_rows(weights, config, rows, target)
    if config.markov is not None:
        reduced[OUTPUT] = weights[OUTPUT][rows]
    reduced["draft_ids"] = rows.astype(mx.int32)
    return reduced, dataclasses.replace(config, head="own", draft_vocab_size=len(ids))


def _head_rows(
    weights: Mapping[str, mx.array], config: DrafterConfig, rows: mx.array, target: Target | None
) -> mx.array:
    if config.head == "own":
        return weights[HEAD][rows]
    if target is None:
        raise OptionError("this drafter uses its target's head; name the target with --target")
    head = target.family.head(target.model)
    if "scales" not in head:
        return head.weight[rows]
    packed = (head[name][rows] for name in ("weight", "scales", "biases"))
    return mx.dequantize(*packed, group_size=head.group_size, bits=head.bits, mode=head.mode)
