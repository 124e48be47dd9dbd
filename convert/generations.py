"""What a target says by itself: the text its drafts have to match, counted by token.

Questions come from the target too: after the bare start of its chat template it writes what
people ask such a model; its greedy answers to them are what a drafter sees in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import mlx.core as mx
from mlx_lm.generate import batch_generate

from dspark_mlx.errors import UnsupportedError
from dspark_mlx.pair import Pair
from dspark_mlx.prompt import prompt_ids

BATCH = 32  # sequences at once: a forward costs little more for many rows than for one
QUESTION, ANSWER = 64, 160  # tokens at most
PATIENCE = 3  # batches without a single token
MARK = "QUESTIONGOESHERE"


def own_counts(
    pair: Pair,
    wanted: int,
    prompts: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Counter[int]:
    """Token counts over at least `wanted` tokens that the target of `pair` generates.

    It answers `prompts` first, then questions of its own. The result repeats: sampling uses
    fixed keys. Raises UnsupportedError for a target that mlx-lm cannot run in batches.
    """
    counts: Counter[int] = Counter()
    silent = 0
    for batch in _batches(pair, prompts):
        before = counts.total()
        for ids in generate_batch(pair, batch, ANSWER):
            counts.update(ids)
        silent = silent + 1 if counts.total() == before else 0
        if silent == PATIENCE:
            raise UnsupportedError(
                f"{pair.target.name} ends every answer at once; count over text instead "
                "(--vocab-text)"
            )
        if progress:
            progress(f"counted {min(counts.total(), wanted)} of {wanted} tokens of the target")
        if counts.total() >= wanted:
            break
    return counts


def _batches(pair: Pair, prompts: Sequence[str]) -> Iterator[list[list[int]]]:
    """Batches of prompts as token ids: the given ones, then without end the target's own."""
    for begin in range(0, len(prompts), BATCH):
        yield [asked(pair, text) for text in prompts[begin : begin + BATCH]]
    opening = _opening(pair)
    for seed in count():
        sampled = generate_batch(pair, [opening] * BATCH, QUESTION, sampler(seed))
        if pair.tokenizer.has_chat_template:
            yield [asked(pair, pair.tokenizer.decode(ids)) for ids in sampled if ids]
        else:
            yield [opening + ids for ids in sampled if ids]


def asked(pair: Pair, text: str) -> list[int]:
    """A user's question as the target is given it: in its chat template, where it has one."""
    if pair.tokenizer.has_chat_template:
        return prompt_ids(pair, messages=[{"role": "user", "content": text}])
    return prompt_ids(pair, text)


def _opening(pair: Pair) -> list[int]:
    """Everything before a user's first word."""
    tokenizer = pair.tokenizer
    if tokenizer.has_chat_template:
        talk = [{"role": "user", "content": MARK}]
        before, mark, _ = tokenizer.apply_chat_template(talk, tokenize=False).partition(MARK)
        if mark:
            return list(tokenizer.encode(before, add_special_tokens=False))
    if tokenizer.bos_token_id is None:
        raise UnsupportedError(
            "this target has neither a chat template that shows where a question begins nor a "
            "beginning-of-text token; count over text instead (--vocab-text)"
        )
    return [tokenizer.bos_token_id]


def sampler(seed: int, temperature: float = 1.0) -> Callable[[mx.array], mx.array]:
    """Draws from log-probabilities [n, V] that repeat: the n-th depends on the seed and n."""
    keys = [mx.random.key(seed)]

    def sample(logprobs: mx.array) -> mx.array:
        keys[0], key = mx.random.split(keys[0])
        return mx.random.categorical(logprobs / temperature, key=key)

    return sample


def generate_batch(
    pair: Pair, prompts: list[list[int]], tokens: int, draw: Any = None
) -> list[list[int]]:
    """What the target says after each prompt, up to `tokens` tokens each; greedy without `draw`.

    Raises UnsupportedError for a target that mlx-lm cannot run in batches.
    """
    try:
        answers = batch_generate(
            pair.target.model, pair.tokenizer, prompts, max_tokens=tokens,
            return_token_ids=True, completion_batch_size=BATCH, sampler=draw,
        )  # fmt: skip
    except ValueError as error:  # mlx-lm: "... does not yet support batching"
        raise UnsupportedError(
            f"{pair.target.name} cannot generate in batches ({error}); "
            "count over text instead (--vocab-text)"
        ) from error
    return answers.token_ids
