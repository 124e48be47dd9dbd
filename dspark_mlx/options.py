"""The options of one generation: one table, checked once, shared by library and command line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypedDict

from .cutoff import Cutoff, parse_cutoff
from .errors import OptionError
from .sampling import Sampling, resolve_seed


class OptionArgs(TypedDict, total=False):
    """Keyword options of `stream`, `stream_generate` and `generate`."""

    max_tokens: int | None
    temperature: float | None
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    cutoff: str | Cutoff
    block_size: int | None
    logprobs: bool | None
    profile: bool
    prefill_step_size: int


@dataclass(frozen=True)
class Options:
    """Checked options.

    max_tokens: None or -1 is unlimited, 0 empty. temperature: None or 0 is greedy. cutoff:
    a name (see `cutoff.KNOWN`) or a policy. block_size: slots per block, up to the drafter's.
    logprobs: give the target's log-probability of every committed token. profile: time draft
    and verify apart, at the price of two more synchronisations per round.
    """

    max_tokens: int | None = 256
    temperature: float | None = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    cutoff: str | Cutoff = "auto"
    block_size: int | None = None
    logprobs: bool | None = None
    profile: bool = False
    prefill_step_size: int = 2048

    def __post_init__(self) -> None:
        _check_integer("max_tokens", self.max_tokens, -1)
        _check_integer("block_size", self.block_size, 1)
        _check_integer("prefill_step_size", self.prefill_step_size, 1)
        if self.prefill_step_size is None:
            raise OptionError("prefill_step_size must be an integer of 1 or more, not None")
        if self.logprobs not in (None, True, False):
            raise OptionError(f"logprobs must be True, False or None, not {self.logprobs!r}")
        _ = self.sampling, self.policy, self.resolved_seed

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


def _check_integer(name: str, value: int | None, low: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise OptionError(f"{name} must be None or an integer of {low} or more, not {value!r}")
