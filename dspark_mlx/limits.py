"""What a pair allows of what the options ask for."""

from __future__ import annotations

from .cutoff import Cutoff
from .errors import OptionError, PairError
from .options import Options
from .pair import Pair


def token_limit(pair: Pair, prompt_length: int, options: Options) -> float:
    """How many tokens may be generated: the option, within the target's context."""
    if prompt_length == 0:
        raise OptionError("the prompt is empty; give at least one token")
    context = pair.target.context_limit
    if context is None:
        return options.token_limit
    if prompt_length >= context:
        raise OptionError(
            f"the prompt has {prompt_length} tokens, {pair.target.name} has room for {context}; "
            "shorten it"
        )
    return min(options.token_limit, context - prompt_length)


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
