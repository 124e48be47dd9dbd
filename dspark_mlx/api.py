"""What applications call: events, a response per token, or the whole answer at once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Unpack

import mlx.core as mx
from mlx_lm.generate import GenerationResponse

from .events import Event, Finished, Prefilled, Round
from .options import OptionArgs, Options
from .pair import Pair
from .prompt import Messages, Prompt, prompt_ids
from .run import run_events
from .stats import Stats


def stream(
    pair: Pair,
    prompt: Prompt | None = None,
    *,
    messages: Messages | None = None,
    thinking: bool | None = None,
    control_tokens: bool = False,
    **options: Unpack[OptionArgs],
) -> Iterator[Event]:
    """Yield Prefilled, Rounds and Finished: plain events for front ends to fold over.

    `prompt` is a string (no chat template) or token ids; `messages` applies the template, with
    its `thinking` section on or off. Names of control tokens in messages are plain text, unless
    `control_tokens`.
    Options are those of `options.Options`; a bad one raises OptionError (an unknown one
    TypeError) at the call. When generating breaks off, Failed comes and the error is raised.
    """
    ids = prompt_ids(pair, prompt, messages, thinking, control_tokens)
    return run_events(pair, ids, Options.of(**options))


@dataclass
class Response(GenerationResponse):
    """mlx-lm's response for one token, and where the token came from.

    `logprobs` is a float (the target's own, natural logarithm) or None. `round` is 0 for the
    token of the prefill; `position` counts from 0 within a round's committed tokens.
    """

    round: int = 0
    position: int = 0


def stream_generate(
    pair: Pair,
    prompt: Prompt | None = None,
    *,
    messages: Messages | None = None,
    thinking: bool | None = None,
    control_tokens: bool = False,
    **options: Unpack[OptionArgs],
) -> Iterator[Response]:
    """Yield one Response per committed token, the stop token included (see `stream`).

    Texts join to the answer. A consumer may stop reading at any time.
    """
    events = stream(
        pair,
        prompt,
        messages=messages,
        thinking=thinking,
        control_tokens=control_tokens,
        **options,
    )
    return _responses(events)


def _responses(events: Iterator[Event]) -> Iterator[Response]:
    stats = Stats()
    begun = time.perf_counter()
    for event in events:
        stats.add(event)
        if not isinstance(event, Prefilled | Round):
            continue
        tokens, texts = _tokens(event), _texts(event)
        for k, token in enumerate(tokens):
            count = stats.tokens - len(tokens) + k + 1
            yield Response(
                text=texts[k],
                token=token,
                logprobs=_logprob(event, k),
                from_draft=isinstance(event, Round) and k < event.accepted,
                prompt_tokens=stats.prompt_tokens,
                prompt_tps=(stats.prompt_tokens - stats.cached_tokens) / stats.prefill_seconds,
                generation_tokens=count,
                generation_tps=count / _since(begun, stats.prefill_seconds),
                peak_memory=mx.get_peak_memory() / 1e9,
                finish_reason=event.finish_reason if k == len(tokens) - 1 else None,
                round=event.index if isinstance(event, Round) else 0,
                position=k,
            )


@dataclass
class Generation:
    """A whole answer. `tokens` holds the stop token too; `text` does not."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    finish_reason: str = "length"
    stats: Stats = field(default_factory=Stats)

    @classmethod
    def of(cls, events: Iterable[Event], logprobs: bool = False) -> Generation:
        """Run events to their end."""
        answer = cls(logprobs=[] if logprobs else None)
        for event in events:
            answer.stats.add(event)
            answer.tokens += _tokens(event)
            answer.text += "".join(_texts(event))
            for k in range(len(_tokens(event))):
                if answer.logprobs is not None and (value := _logprob(event, k)) is not None:
                    answer.logprobs.append(value)
            if isinstance(event, Finished):
                answer.finish_reason = event.reason
        return answer


def generate(
    pair: Pair,
    prompt: Prompt | None = None,
    *,
    messages: Messages | None = None,
    thinking: bool | None = None,
    control_tokens: bool = False,
    **options: Unpack[OptionArgs],
) -> Generation:
    """Run `stream` to its end and return the answer with its statistics."""
    events = stream(
        pair,
        prompt,
        messages=messages,
        thinking=thinking,
        control_tokens=control_tokens,
        **options,
    )
    return Generation.of(events, bool(options.get("logprobs")))


def _tokens(event: Event) -> tuple[int, ...]:
    if isinstance(event, Prefilled):
        return (event.token,)
    return event.tokens if isinstance(event, Round) else ()


def _texts(event: Event) -> tuple[str, ...]:
    if isinstance(event, Prefilled):
        return (event.text,)
    return event.texts if isinstance(event, Round) else ()


def _logprob(event: Event, k: int) -> float | None:
    if isinstance(event, Prefilled):
        return event.logprob
    return event.logprobs[k] if isinstance(event, Round) and event.logprobs else None


def _since(begun: float, prefill: float) -> float:
    return max(time.perf_counter() - begun - prefill, 1e-9)
