"""The decode loop: prefill, then rounds of draft, cut, verify and commit; one event each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import wired_limit

from .cutoff import Plan
from .decisions import Decisions
from .drafters.base import Proposal
from .errors import UserError
from .events import Event, Failed, Finished, Prefilled, Round
from .heads.confidence import to_probability
from .limits import block_slots, token_limit
from .options import Options
from .pair import Pair
from .sampling import Draws, KeyedDraws
from .sync import Clock, Host
from .text import TextStream
from .verify import Verdict, verify_greedy, verify_sampled
from .waiting import Waiting

CLEAR_EVERY = 256  # tokens between releases of MLX's free buffers, as often as mlx-lm does


def run_events(
    pair: Pair, prompt: Sequence[int], options: Options, draws: Draws | None = None
) -> Iterator[Event]:
    """Generate after the prompt ids; caches are committed before every yield.

    Yields Prefilled, Rounds and Finished. When generating breaks off, yields Failed and then
    raises the error. `draws` replaces the seeded source of random draws.
    """
    return _events(Run(pair, prompt, options, draws))


def _events(run: Run) -> Iterator[Event]:
    try:
        with wired_limit(run.pair.target.model):
            if run.reason is None:
                yield run.prefill()
            while run.reason is None:
                yield run.round()
            yield run.finished()
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        yield Failed(line, isinstance(error, UserError))
        raise


class Run:
    """One generation's state. Between rounds the cache holds all of `tokens` but the last."""

    def __init__(
        self, pair: Pair, prompt: Sequence[int], options: Options, draws: Draws | None = None
    ) -> None:
        self.pair, self.options = pair, options
        self.tokens = list(prompt)  # the committed record: prompt, then output
        self.prompt_length = len(self.tokens)
        self.limit = token_limit(pair, self.prompt_length, options)
        self.reason: str | None = None if self.limit > 0 else "length"
        self.sampling = options.sampling
        self.seed = options.resolved_seed
        self.draws = draws or KeyedDraws(self.seed)
        self.slots = block_slots(pair, options, options.policy)
        self.decisions = Decisions(pair, options, self.slots)
        self.waiting = Waiting()
        self.host = Host()
        self.cache = pair.target.new_cache()
        self.context: Any = pair.drafter.start() if pair.drafter else None
        self.text = TextStream(pair.tokenizer)
        self.rounds = 0
        self._cleared_at = 0

    def prefill(self) -> Prefilled:
        """Process the prompt in chunks, then choose and commit the first token."""
        clock = Clock()
        last = self.prompt_length - 1
        for begin in range(0, last, self.options.prefill_step_size):
            end = min(begin + self.options.prefill_step_size, last)
            _, features = self.pair.tapped(mx.array(self.tokens[begin:end]), self.cache)
            self._remember(features, self.tokens[begin + 1 : end + 1])
            self.host.wait(*self.cache.arrays(), *self._context_arrays())
            mx.clear_cache()
        # the last prompt token runs alone, as in mlx-lm, so that its logits are the same bits
        logits, features = self.pair.tapped(mx.array(self.tokens[last:]), self.cache)
        verdict = self._judge(_nothing(), logits)
        final, logprobs = self.host.read(verdict.final, self._logprobs(_nothing(), verdict, logits))
        self._commit(final, features)
        return Prefilled(
            prompt_tokens=self.prompt_length,
            token=final[0],
            text=self._texts(final)[0],
            logprob=logprobs[0] if logprobs else None,
            seconds=clock.total(),
            finish_reason=self.reason,
        )

    def round(self) -> Round:
        """One decode round (method section 1.4), committed before it is returned."""
        self.decisions.begin()
        clock = Clock()
        anchor, position = self.tokens[-1], len(self.tokens) - 1
        plan = self.decisions.plan(self.limit - (position + 1 - self.prompt_length), position)
        drawn = self._draft(anchor, plan)
        drafts = drawn.first(self._cut(drawn, plan))
        draft_seconds = self._split(clock, drawn.tokens)
        ids = mx.concatenate([mx.array([anchor]), drafts.tokens])
        logits, features = self.pair.tapped(ids, self.cache)
        verify_seconds = self._split(clock, logits)
        verdict = self._judge(drafts, logits)
        accepted, final, proposed, confidence, logprobs = self.host.read(
            verdict.accepted,
            verdict.final,
            drawn.tokens,
            drawn.confidence,
            self._logprobs(drafts, verdict, logits),
            # without a block nothing else would bring the context up to date
            behind=() if drawn.tokens.size else self._context_arrays(),
        )
        proposed, verified = self._counted(proposed, drafts.tokens.size)
        committed, origin = self._ending(proposed[:accepted], final, verified)
        self._commit(committed, features, wait=plan.standing_down)
        self.rounds += 1
        event = Round(
            index=self.rounds,
            anchor=anchor,
            anchor_position=position,
            proposed=tuple(proposed),
            confidence=None if confidence is None else tuple(map(to_probability, confidence)),
            verified=verified,
            accepted=len(committed) - (origin is not None),
            proposal_len=verified if origin else len(committed),
            final=committed[-1] if origin else None,
            origin=origin,
            tokens=tuple(committed),
            texts=self._texts(committed),
            logprobs=_pick_logprobs(logprobs, len(committed), origin),
            seconds=clock.total(),
            draft_seconds=draft_seconds,
            verify_seconds=verify_seconds,
            finish_reason=self.reason,
            reason=plan.reason,
            looked=plan.look,
            gain=plan.gain,
        )
        self.decisions.observe(event)
        return event

    def finished(self) -> Finished:
        """The closing event."""
        self._catch_up()
        return Finished(
            reason=self.reason or "length",
            tokens=len(self.tokens) - self.prompt_length,
            syncs=self.host.syncs,
            seed=self.seed,
            peak_memory=mx.get_peak_memory() / 1e9,
        )

    def _draft(self, anchor: int, plan: Plan) -> Proposal:
        """Draft a block (lazy), as the plan says."""
        drafter = self.pair.drafter
        if drafter is None or plan.draw < 1:
            return _nothing()
        self._catch_up()
        drawn = drafter.propose(self.context, anchor, self.slots, plan.draw, self._pick)
        mx.async_eval(drawn.tokens)  # the device drafts while the host builds the verify pass
        return drawn

    def _cut(self, drawn: Proposal, plan: Plan) -> int:
        """How many of the drawn drafts to verify."""
        if not plan.look:
            return plan.verify
        [logits] = self.host.read(drawn.confidence)
        return self.decisions.cut([to_probability(z) for z in logits])

    def _pick(self, logits: mx.array) -> tuple[mx.array, mx.array | None]:
        """Draw one token [1] from logits [1, V], with the distribution it came from."""
        if self.sampling.greedy:
            return mx.argmax(logits, axis=-1), None
        probabilities = self.sampling.probabilities(logits)
        return self.draws.token(probabilities), probabilities

    def _judge(self, drafts: Proposal, logits: mx.array) -> Verdict:
        """Accept a prefix of the drafts and choose the token after it (lazy)."""
        if self.sampling.greedy:
            return verify_greedy(drafts.tokens, logits)
        return verify_sampled(
            drafts.tokens,
            drafts.probs,
            self.sampling.probabilities(logits),
            self.draws.uniforms(drafts.tokens.size),
            self.draws.token,
        )

    def _counted(self, proposed: list[int], verified: int) -> tuple[list[int], int]:
        """Proposed tokens and verified length, for kinds whose proposals end with a stop token.

        What was drafted behind it could never have been committed.
        """
        if self.pair.drafter is not None and self.pair.drafter.ends_at_stop:
            for k, token in enumerate(proposed):
                if token in self.pair.stop_ids:
                    return proposed[: k + 1], min(verified, k + 1)
        return proposed, verified

    def _ending(
        self, accepted: list[int], final: list[int], verified: int
    ) -> tuple[list[int], str | None]:
        """The committed tokens and what the last one is; an accepted stop token ends them."""
        for k, token in enumerate(accepted):
            if token in self.pair.stop_ids:
                return accepted[: k + 1], None
        if not verified:
            return final, "plain"
        return accepted + final, "bonus" if len(accepted) == verified else "correction"

    def _commit(self, committed: list[int], features: list[mx.array], wait: bool = False) -> None:
        """Record tokens; keep exactly the positions before the newest one, and set the reason.

        The pass that judged the tokens ran one row per token at least, so the first
        len(committed) feature rows belong to positions that are now settled.
        """
        self.tokens += committed
        self.cache.keep(len(self.tokens) - 1)
        self._remember([rows[: len(committed)] for rows in features], committed, wait)
        if len(self.tokens) - self._cleared_at >= CLEAR_EVERY:
            mx.clear_cache()
            self._cleared_at = len(self.tokens)
        if committed[-1] in self.pair.stop_ids:
            self.reason = "stop"
        elif len(self.tokens) - self.prompt_length >= self.limit:
            self.reason = "length"

    def _remember(self, features: list[mx.array], following: list[int], wait: bool = False) -> None:
        if self.pair.drafter is not None:
            self.waiting.add(features, following)
            if self.waiting.full or not wait:
                self._catch_up()

    def _catch_up(self) -> None:
        """Give the drafter what waits for it."""
        if self.pair.drafter is not None and len(self.waiting):
            self.pair.drafter.extend(self.context, *self.waiting.take())

    def _context_arrays(self) -> list[mx.array]:
        drafter = self.pair.drafter
        return [] if drafter is None else drafter.context_arrays(self.context)

    def _texts(self, committed: list[int]) -> tuple[str, ...]:
        """Text per committed token; stop tokens have none, and the last one flushes."""
        texts = ["" if t in self.pair.stop_ids else self.text.add(t) for t in committed]
        if self.reason is not None:
            texts[-1] += self.text.flush()
        return tuple(texts)

    def _logprobs(self, drafts: Proposal, verdict: Verdict, logits: mx.array) -> mx.array | None:
        """The target's log-probabilities [l+1] of the drafts and the final token, if asked."""
        if not self.options.logprobs:
            return None
        logits = logits.astype(mx.float32)
        rows = logits - mx.logsumexp(logits, axis=-1, keepdims=True)  # [l+1, V]
        own = mx.take_along_axis(rows[: drafts.tokens.size], drafts.tokens[:, None], axis=-1)
        return mx.concatenate([own.squeeze(-1), rows[verdict.accepted, verdict.final]])

    def _split(self, clock: Clock, array: mx.array) -> float | None:
        """In a profiled run, wait for `array` and return the seconds since the last split."""
        if not self.options.profile:
            return None
        self.host.wait(array)
        return clock.lap()


def _nothing() -> Proposal:
    # made per round: an unevaluated array must not be shared between threads
    return Proposal(mx.zeros((0,), mx.int32))


def _pick_logprobs(
    values: list[float] | None, committed: int, origin: str | None
) -> tuple[float, ...] | None:
    # row -1 is the final token's; between it and the accepted drafts lie rejected ones
    if values is None:
        return None
    return tuple([*values[: committed - 1], values[-1]] if origin else values[:committed])
