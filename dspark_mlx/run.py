"""The decode loop: prefill, then rounds of draft, cut, verify and commit; one event each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx
from mlx_lm.generate import wired_limit

from .choice import Choice, logprobs_of
from .cutoff import Plan
from .decisions import PAST_LIMIT, Decisions
from .drafters.base import Proposal
from .ending import Answer, Taken
from .errors import UserError
from .events import Event, Failed, Finished, Prefilled, Prefilling, Round
from .heads.confidence import to_probability
from .limits import block_slots, check_bias, context_window, token_limit
from .options import Options
from .pair import Pair
from .sampling import Draws, KeyedDraws
from .state import State
from .sync import Clock, Host

CLEAR_EVERY = 256  # tokens between releases of MLX's free buffers, as often as mlx-lm does


def run_events(
    pair: Pair,
    prompt: Sequence[int],
    options: Options,
    draws: Draws | None = None,
    *,
    state: State | None = None,
    borders: Sequence[int] = (),
) -> Iterator[Event]:
    """Generate after the prompt ids; caches are committed before every yield.

    Yields Prefilling between chunks of a long prompt, then Prefilled, Rounds and Finished. When
    generating breaks off, yields Failed and then raises the error. `draws` replaces the seeded
    source of random draws. `state` is gone on with: what it shares with the prompt is not
    processed again; it is touched from the first event on. At `borders` (positions of the
    prompt) a state that cannot be cut back anywhere remembers a place to go back to.
    """
    return _events(Run(pair, prompt, options, draws, state, borders))


def _events(run: Run) -> Iterator[Event]:
    try:
        with wired_limit(run.pair.target.model):
            if run.answer.reason is None:
                yield from run.prefill()
            while run.answer.reason is None:
                yield run.round()
            yield run.finished()
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        yield Failed(line, isinstance(error, UserError))
        raise


class Run:
    """One generation. Between rounds its state has processed all of the record but the last."""

    def __init__(
        self,
        pair: Pair,
        prompt: Sequence[int],
        options: Options,
        draws: Draws | None = None,
        state: State | None = None,
        borders: Sequence[int] = (),
    ) -> None:
        self.pair, self.options = pair, options
        self.prompt, self.borders = list(prompt), borders
        self.slots = block_slots(pair, options, options.policy)
        self.decisions = Decisions(pair, options, self.slots)
        check_bias(pair, options)
        limit = token_limit(pair, len(self.prompt), options, state.length if state else 0)
        self.answer = Answer(pair.tokenizer, pair.stop_ids, options.stop_strings, limit)
        self.seed = options.resolved_seed
        self.choice = Choice(
            options.sampling,
            draws or KeyedDraws(self.seed),
            self.prompt,
            options.processors,
            options.sampler,
        )
        self.host = Host()
        self.state = state or State(pair)
        self.rounds = 0
        self._cleared_at = 0

    def prefill(self) -> Iterator[Prefilling | Prefilled]:
        """Process what is new of the prompt in chunks, then choose and commit the first token."""
        clock, spent, state, last = Clock(), 0.0, self.state, len(self.prompt) - 1
        kept = state.begin(self.prompt, context_window(self.pair, self.options))
        while (begin := state.length) < last:
            end = min(begin + self.options.prefill_step_size, last)
            end = min([end, *(border for border in self.borders if border > begin)])
            _, features = state.forward(mx.array(self.prompt[begin:end]))
            state.settle(features, end - begin)
            self.host.wait(*state.arrays())
            mx.clear_cache()
            if end in self.borders:
                state.checkpoint()
            if end < last:
                spent += clock.lap()
                yield Prefilling(end, len(self.prompt), kept)
                clock.lap()  # what the consumer did meanwhile is not prefill
        # the last prompt token runs alone, as in mlx-lm, so that its logits are the same bits
        logits, features = state.forward(mx.array(self.prompt[last:]))
        verdict, rows = self.choice.judge(_nothing(), logits)
        final, logprobs = self.host.read(
            verdict.final,
            logprobs_of(_nothing(), verdict, rows) if self.options.logprobs else None,
        )
        taken = self._commit(final, features)
        yield Prefilled(
            prompt_tokens=len(self.prompt),
            token=final[0],
            text=taken.texts[0],
            logprob=logprobs[0] if logprobs else None,
            seconds=spent + clock.lap(),
            finish_reason=self.answer.reason,
            cached_tokens=kept,
        )

    def round(self) -> Round:
        """One decode round (method section 1.4), committed before it is returned."""
        self.decisions.begin()
        clock, state = Clock(), self.state
        state.busy = True
        anchor, position = state.tokens[-1], state.length
        plan = self._plan()
        drawn = self._draft(anchor, plan)
        drafts = drawn.first(self._cut(drawn, plan))
        draft_seconds = self._split(clock, drawn.tokens)
        logits, features = state.forward(mx.concatenate([mx.array([anchor]), drafts.tokens]))
        verify_seconds = self._split(clock, logits)
        verdict, rows = self.choice.judge(drafts, logits)
        accepted, final, proposed, confidence, logprobs = self.host.read(
            verdict.accepted,
            verdict.final,
            drawn.tokens,
            drawn.confidence,
            logprobs_of(drafts, verdict, rows) if self.options.logprobs else None,
            # without a block nothing else would bring the context up to date
            behind=() if drawn.tokens.size else state.context_arrays(),
        )
        proposed, verified = self._counted(proposed, drafts.tokens.size)
        taken = self._commit(proposed[:accepted] + final, features, wait=plan.standing_down)
        origin = self._origin(len(taken.tokens), accepted, verified)
        self.rounds += 1
        event = Round(
            index=self.rounds,
            anchor=anchor,
            anchor_position=position,
            proposed=tuple(proposed),
            confidence=None if confidence is None else tuple(map(to_probability, confidence)),
            verified=verified,
            accepted=len(taken.tokens) - (origin is not None),
            proposal_len=verified if origin else len(taken.tokens),
            final=taken.tokens[-1] if origin else None,
            origin=origin,
            tokens=tuple(taken.tokens),
            texts=taken.texts,
            logprobs=_pick_logprobs(logprobs, len(taken.tokens), origin),
            seconds=clock.total(),
            draft_seconds=draft_seconds,
            verify_seconds=verify_seconds,
            finish_reason=self.answer.reason,
            reason=plan.reason,
            looked=plan.look,
            gain=plan.gain,
        )
        self.decisions.observe(event)
        return event

    def finished(self) -> Finished:
        """The closing event."""
        self.state.catch_up()
        mx.async_eval(*self.state.context_arrays())  # another thread may go on from here
        return Finished(
            reason=self.answer.reason or "length",
            tokens=self.answer.length,
            syncs=self.host.syncs,
            seed=self.seed,
            peak_memory=mx.get_peak_memory() / 1e9,
            stop_string=self.answer.stop_string,
            rule=self.choice.rule,
        )

    def _plan(self) -> Plan:
        """What to draw and verify in this round."""
        length, border = self.state.length, self.state.cache.rows_until_border()
        if self._past_limit(length):
            return Plan(0, 0, reason=PAST_LIMIT)
        remaining = self.answer.remaining if border is None else min(self.answer.remaining, border)
        return self.decisions.plan(remaining, length)

    def _past_limit(self, position: int) -> bool:
        """Whether a block at this position would reach past the drafter's own limit."""
        limit = self.state.drafter_limit
        return limit is not None and position + self.slots > limit

    def _draft(self, anchor: int, plan: Plan) -> Proposal:
        """Draft a block (lazy), as the plan says."""
        drafter = self.pair.drafter
        if drafter is None or plan.draw < 1:
            return _nothing()
        self.state.catch_up()
        drawn = self.choice.propose(drafter, self.state.context, anchor, self.slots, plan.draw)
        mx.async_eval(drawn.tokens)  # the device drafts while the host builds the verify pass
        return drawn

    def _cut(self, drawn: Proposal, plan: Plan) -> int:
        """How many of the drawn drafts to verify."""
        if not plan.look:
            return plan.verify
        [logits] = self.host.read(drawn.confidence)
        return self.decisions.cut([to_probability(z) for z in logits])

    def _counted(self, proposed: list[int], verified: int) -> tuple[list[int], int]:
        """Proposed tokens and verified length, for kinds whose proposals end with a stop token.

        What was drafted behind it could never have been committed.
        """
        if self.pair.drafter is not None and self.pair.drafter.ends_at_stop:
            for k, token in enumerate(proposed):
                if token in self.pair.stop_ids:
                    return proposed[: k + 1], min(verified, k + 1)
        return proposed, verified

    def _origin(self, taken: int, accepted: int, verified: int) -> str | None:
        """What the last token taken is; None for an accepted draft that ended the answer."""
        if taken <= accepted:
            return None
        if not verified:
            return "plain"
        return "bonus" if accepted == verified else "correction"

    def _commit(self, tokens: list[int], features: list[mx.array], wait: bool = False) -> Taken:
        """Record the tokens that the answer takes; settle the positions before the newest one.

        The pass that judged the tokens ran one row per token at least, so the first rows belong
        to positions that are now settled.
        """
        taken = self.answer.take(tokens)
        self.state.tokens += taken.tokens
        self.state.settle(features, len(taken.tokens), wait)
        self.choice.committed(taken.tokens)
        if self.answer.length - self._cleared_at >= CLEAR_EVERY:
            mx.clear_cache()
            self._cleared_at = self.answer.length
        return taken

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
