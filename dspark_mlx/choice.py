"""How one generation turns logits into tokens: processors, then one of three accept rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from .drafters.base import Drafter, Proposal
from .processors import Processor, Processors
from .sampling import Draws, Sampling
from .verify import Verdict, verify_greedy, verify_match, verify_sampled

# log-probabilities [1, V] -> token [1], as mlx-lm's samplers
Sampler = Callable[[mx.array], mx.array]


class Choice:
    """Draws drafts and judges them. `rule` is "greedy", "speculative" or "match".

    "match": an opaque sampler gives no distribution to test drafts against, so it draws a token
    at every row and drafts are accepted while they are equal: still its own distribution, with
    fewer drafts accepted than by speculative sampling.
    """

    def __init__(
        self,
        sampling: Sampling,
        draws: Draws,
        history: Sequence[int],
        processors: Sequence[Processor] = (),
        sampler: Sampler | None = None,
    ) -> None:
        self._sampling, self._draws, self._sampler = sampling, draws, sampler
        self._processors = Processors(processors, history)
        self._drafter: Drafter | None = None
        greedy = "greedy" if sampling.greedy else "speculative"
        self.rule = greedy if sampler is None else "match"

    def propose(
        self, drafter: Drafter, context: Any, anchor: int, slots: int, count: int
    ) -> Proposal:
        """A block of drafts (lazy), each drawn as this generation draws."""
        self._drafter = drafter
        return drafter.propose(context, anchor, slots, count, self._pick)

    def _pick(self, logits: mx.array) -> tuple[mx.array, mx.array | None]:
        """Draw one draft [1] from logits [1, rows], with the distribution it came from."""
        assert self._drafter is not None
        ids = self._drafter.head_ids
        logits = self._processors.on_draft(logits, ids, self._drafter.config.vocab_size)
        if self.rule == "speculative":
            probabilities = self._sampling.probabilities(logits)
            row = self._draws.token(probabilities)
        else:
            row, probabilities = mx.argmax(logits, axis=-1), None
        self._processors.drafted(row if ids is None else ids[row])
        return row, probabilities

    def judge(self, drafts: Proposal, logits: mx.array) -> tuple[Verdict, mx.array]:
        """Accept a prefix of drafts [l], choose the token after it; and the rows judged [l+1, V].

        Lazy.
        """
        rows = self._processors.on_target(drafts.tokens, logits)
        if self.rule == "greedy":
            return verify_greedy(drafts.tokens, rows), rows
        if self._sampler is not None:
            own = log_probabilities(rows)
            drawn = [self._sampler(own[k : k + 1]).reshape(1) for k in range(rows.shape[0])]
            return verify_match(drafts.tokens, mx.concatenate(drawn)), rows
        verdict = verify_sampled(
            drafts.tokens,
            drafts.probs,
            self._sampling.probabilities(rows),
            self._draws.uniforms(drafts.tokens.size),
            self._draws.token,
        )
        return verdict, rows

    def committed(self, tokens: Sequence[int]) -> None:
        """Note settled tokens."""
        self._processors.committed(tokens)


def log_probabilities(rows: mx.array) -> mx.array:
    """Natural logarithms, float32, over the last axis."""
    rows = rows.astype(mx.float32)
    return rows - mx.logsumexp(rows, axis=-1, keepdims=True)


def logprobs_of(drafts: Proposal, verdict: Verdict, rows: mx.array) -> mx.array:
    """The target's log-probabilities [l+1] of the drafts and of the final token, lazy."""
    rows = log_probabilities(rows)  # [l+1, V]
    own = mx.take_along_axis(rows[: drafts.tokens.size], drafts.tokens[:, None], axis=-1)
    return mx.concatenate([own.squeeze(-1), rows[verdict.accepted, verdict.final]])
