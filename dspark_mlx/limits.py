"""What a pair and the machine allow of what the options ask for."""

from __future__ import annotations

import math

from . import memory
from .cutoff import Cutoff
from .errors import OptionError, PairError
from .options import Options
from .pair import Pair

TRAINED_CONTEXT = 4096  # the official recipes train drafters on no longer sequences


def token_limit(pair: Pair, prompt_length: int, options: Options, settled: int = 0) -> float:
    """How many tokens may be generated: the option, within the target's context and memory.

    `settled` positions are in memory already. Raises OptionError where the prompt, or a number
    of tokens that was asked for, cannot fit.
    """
    if prompt_length == 0:
        raise OptionError("the prompt is empty; give at least one token")
    context = pair.target.context_limit or math.inf
    if prompt_length >= context:
        raise OptionError(
            f"the prompt has {prompt_length} tokens, {pair.target.name} has room for {context}; "
            "shorten it"
        )
    limit = min(options.token_limit, context - prompt_length)
    return _within_memory(pair, prompt_length, limit, options, settled) if limit > 0 else limit


def _within_memory(
    pair: Pair, prompt_length: int, limit: float, options: Options, settled: int
) -> float:
    window, free = context_window(pair, options), memory.available()

    def needs(end: float) -> int:
        chunk = options.prefill_step_size
        return memory.request_bytes(pair, min(settled, prompt_length), int(end), window, chunk)

    asked = math.isfinite(options.token_limit)
    end = prompt_length + (limit if asked else 1)
    if needs(end) > free:
        size = memory.gigabytes
        raise OptionError(
            f"{int(end)} positions of {pair.target.name} need about {size(needs(end))} beside "
            f"{size(memory.weight_bytes(pair))} of weights, and {size(free)} of "
            f"{size(memory.budget())} are free; shorten the prompt or lower max_tokens"
        )
    if asked:
        return limit
    per_token = max(needs(end + 1) - needs(end), 1)
    return min(limit, 1 + (free - needs(end)) // per_token)


def block_slots(pair: Pair, options: Options, policy: Cutoff) -> int:
    """Slots per block; checks the options that concern the drafter."""
    if pair.drafter is None:
        return 0
    full = pair.drafter.block_size
    if options.block_size is not None and options.block_size > full:
        raise OptionError(
            f"block_size {options.block_size} is more than the {full} slots this drafter was "
            "trained for"
        )
    head = pair.drafter.config.confidence
    if policy.needs_confidence and head is None:
        raise PairError("this cutoff needs a confidence head, and this drafter has none")
    if not (policy.causal or options.sampling.greedy or (head and not head.with_markov)):
        raise OptionError(
            "this cutoff looks back from later confidences, which would change the distribution "
            "of sampled text; use it with temperature 0, or take auto or paper"
        )
    return options.block_size or full


def context_window(pair: Pair, options: Options) -> int | None:
    """How many of the newest positions the drafter looks at; None for all of them."""
    if options.drafter_context is None:
        return TRAINED_CONTEXT
    return None if options.drafter_context == -1 else options.drafter_context


def check_bias(pair: Pair, options: Options) -> None:
    """Refuse a logit bias on a token that the target does not have."""
    size = pair.target.vocab_size
    for token in options.logit_bias or {}:
        if not 0 <= token < size:
            raise OptionError(f"logit_bias names token {token}, expected 0 to {size - 1}")
