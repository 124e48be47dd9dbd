"""The options of one generation: one table, checked once, shared by library and command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

from .cutoff import Cutoff, parse_cutoff
from .errors import OptionError
from .processors import Processor
from .sampling import Sampling, resolve_seed


class OptionArgs(TypedDict, total=False):
    """Keyword options of `stream`, `stream_generate`, `generate` and `ChatSession`."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    temperature: float | None
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    sampler: Callable[[mx.array], mx.array] | None
    logits_processors: Sequence[Processor] | None
    logit_bias: Mapping[int, float] | None
    repetition_penalty: float | None
    repetition_context_size: int
    presence_penalty: float | None
    presence_context_size: int
    frequency_penalty: float | None
    frequency_context_size: int
    cutoff: str | Cutoff
    block_size: int | None
    drafter_context: int | None
    logprobs: bool | None
    profile: bool
    prefill_step_size: int


@dataclass(frozen=True)
class Options:
    """Checked options.

    max_tokens: None or -1 is unlimited, 0 empty. stop: strings that end the answer; the text
    ends in front of the first one. temperature: None or 0 is greedy. sampler: mlx-lm's kind of
    function from log-probabilities to a token, in place of temperature, filters and seed.
    Penalties and logit_bias are those of mlx-lm's `make_logits_processors`; logits_processors
    are more functions `(tokens, logits) -> logits`, without a state of their own. cutoff: a
    name (see `cutoff.KNOWN`) or a policy. block_size: slots per block, up to the drafter's.
    drafter_context: how many of the newest positions the drafter looks at and keeps (None: what
    drafters are trained on; -1: all). logprobs: give the target's log-probability of every
    committed token. profile: time draft and verify apart, at the price of two more
    synchronisations per round.
    """

    max_tokens: int | None = 256
    stop: str | Sequence[str] | None = None
    temperature: float | None = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    sampler: Callable[[mx.array], mx.array] | None = None
    logits_processors: Sequence[Processor] | None = None
    logit_bias: Mapping[int, float] | None = None
    repetition_penalty: float | None = None
    repetition_context_size: int = 20
    presence_penalty: float | None = None
    presence_context_size: int = 20
    frequency_penalty: float | None = None
    frequency_context_size: int = 20
    cutoff: str | Cutoff = "auto"
    block_size: int | None = None
    drafter_context: int | None = None
    logprobs: bool | None = None
    profile: bool = False
    prefill_step_size: int = 2048

    def __post_init__(self) -> None:
        _check_integer("max_tokens", self.max_tokens, -1)
        _check_integer("block_size", self.block_size, 1)
        _check_integer("drafter_context", self.drafter_context, -1)
        if self.drafter_context == 0:
            raise OptionError("drafter_context must be None, -1 or an integer of 1 or more, not 0")
        for name in ("prefill", "repetition", "presence", "frequency"):
            name += "_step_size" if name == "prefill" else "_context_size"
            _check_integer(name, getattr(self, name), 1)
            if getattr(self, name) is None:
                raise OptionError(f"{name} must be an integer of 1 or more, not None")
        if self.logprobs not in (None, True, False):
            raise OptionError(f"logprobs must be True, False or None, not {self.logprobs!r}")
        self._check_sampler()
        _ = self.sampling, self.policy, self.resolved_seed, self.stop_strings, self.processors

    @classmethod
    def of(cls, **options: Any) -> Options:
        """Build from keywords; an unknown one is a TypeError that names it and the known ones."""
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(options) - set(known)):
            raise TypeError(f"unknown option {', '.join(unknown)}; known: {', '.join(known)}")
        return cls(**options)

    @property
    def sampling(self) -> Sampling:
        """Temperature and filters."""
        return Sampling(self.temperature or 0.0, self.top_p, self.top_k, self.min_p)

    @property
    def policy(self) -> Cutoff:
        """The cutoff as a policy object."""
        return parse_cutoff(self.cutoff)

    @property
    def resolved_seed(self) -> int:
        """The seed, or a fresh one; a fresh one differs at every call."""
        return resolve_seed(self.seed)

    @property
    def token_limit(self) -> float:
        """`max_tokens` as a number that can be compared; infinity when unlimited."""
        return float("inf") if self.max_tokens in (None, -1) else float(self.max_tokens or 0)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        given = () if self.stop is None else self.stop
        strings = (given,) if isinstance(given, str) else given
        if not isinstance(strings, Sequence) or not all(isinstance(s, str) and s for s in strings):
            raise OptionError(f"stop must be one or more strings, none empty, not {self.stop!r}")
        return tuple(strings)

    @property
    def processors(self) -> list[Processor]:
        """mlx-lm's processors for penalties and bias, then the caller's own."""
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            _check_number(name, getattr(self, name), 0.0 if name[0] == "r" else -math.inf)
        for token, value in (self.logit_bias or {}).items():
            _check_integer("a token id of logit_bias", token, 0)
            _check_number("a value of logit_bias", value, -math.inf)
        own = list(self.logits_processors or ())
        if bad := [p for p in own if not callable(p)]:
            raise OptionError(f"logits_processors must be functions, not {bad[0]!r}")
        made = make_logits_processors(
            dict(self.logit_bias) if self.logit_bias else None,
            self.repetition_penalty,
            self.repetition_context_size,
            self.presence_penalty,
            self.presence_context_size,
            self.frequency_penalty,
            self.frequency_context_size,
        )
        return [*made, *own]

    def _check_sampler(self) -> None:
        if self.sampler is None:
            return
        if not callable(self.sampler):
            raise OptionError(f"sampler must be a function, not {self.sampler!r}")
        plain = Options()
        for name in ("temperature", "top_p", "top_k", "min_p", "seed"):
            if getattr(self, name) not in (None, getattr(plain, name)):
                raise OptionError(f"a sampler draws by itself; leave out {name}")


def _check_integer(name: str, value: Any, low: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise OptionError(f"{name} must be None or an integer of {low} or more, not {value!r}")


def _check_number(name: str, value: Any, low: float) -> None:
    if value is None:
        return
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < low:
        span = "" if math.isinf(low) else f" of {low:g} or more"
        raise OptionError(f"{name} must be None or a number{span}, not {value!r}")
