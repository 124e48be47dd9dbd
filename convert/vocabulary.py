"""A cheaper drafter: its head and Markov output table cut to the most useful tokens.

Still lossless, since the target verifies every draft; a token that is not kept is just never
drafted. Reading these tables is most of a small drafter's work.
"""

from __future__ import annotations

import dataclasses
import json
import pydoc_data.topics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from dspark_mlx.config import DrafterConfig
from dspark_mlx.errors import OptionError
from dspark_mlx.loading import load_tokenizer
from dspark_mlx.targets.base import Target

HEAD, OUTPUT = "lm_head.weight", "markov_head.markov_w2.weight"


def most_useful(
    target: Path, vocabulary: int, size: int, texts: Sequence[str | Path] = ()
) -> list[int]:
    """The `size` token ids to keep for a target folder, by counts over files or built-in text."""
    tokenizer, stops = load_tokenizer(target)
    paths = [Path(text).expanduser() for text in texts]
    counts = count_tokens(read_texts(paths) if paths else built_in_texts(), tokenizer)
    return choose_tokens(counts, size, vocabulary, always_kept(tokenizer, stops))


def choose_tokens(
    counts: Mapping[int, int], size: int, vocabulary: int, always: Iterable[int]
) -> list[int]:
    """`size` token ids, ascending: `always`, then the most counted.

    Ties, and places left over, go to lower ids: byte-pair vocabularies are numbered by
    frequency. Raises OptionError when `size` is no proper part of the vocabulary.
    """
    kept = {t for t in always if 0 <= t < vocabulary}
    if not len(kept) <= size < vocabulary:
        raise OptionError(
            f"--draft-vocab {size} must lie between the {len(kept)} tokens that are always kept "
            f"and the vocabulary of {vocabulary}"
        )
    ranked = sorted(
        (t for t in range(vocabulary) if t not in kept), key=lambda t: (-counts.get(t, 0), t)
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


def count_tokens(texts: Iterable[str], tokenizer: Any) -> Counter[int]:
    """How often each token occurs in the texts."""
    counts: Counter[int] = Counter()
    for text in texts:
        for line in text.splitlines(keepends=True):  # a long text makes tokenizers complain
            counts.update(tokenizer.encode(line, add_special_tokens=False))
    return counts


def read_texts(paths: Iterable[Path]) -> Iterator[str]:
    """Texts of files: every string inside a .jsonl line, otherwise the file as it is."""
    for path in paths:
        try:
            content = path.read_text(encoding="utf-8")
            if path.suffix == ".jsonl":
                yield from (s for line in content.splitlines() for s in _strings(json.loads(line)))
            else:
                yield content
        except (OSError, ValueError) as error:
            raise OptionError(f"cannot read the text {path}: {error}") from error


def built_in_texts() -> list[str]:
    """A corpus that every machine has: the language reference that Python itself ships."""
    return list(pydoc_data.topics.topics.values())


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


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
