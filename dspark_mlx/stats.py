"""Figures of a generation, folded from its events; definitions follow DeepSpec (section 10.2)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .events import Event, Finished, Prefilled, Round


@dataclass
class Stats:
    """Pooled counts over rounds; `add` takes any event. Ratios without a basis are None."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, processed by an earlier turn
    tokens: int = 0
    rounds: int = 0
    committed: int = 0  # tokens committed by rounds; the prefill token belongs to none
    proposed: int = 0
    verified: int = 0
    accepted: int = 0
    proposal_len: int = 0
    accepted_at: list[int] = field(default_factory=list)  # rounds with more than k accepted
    judged_at: list[int] = field(default_factory=list)  # rounds that verified more than k
    reasons: dict[str, int] = field(default_factory=dict)  # rounds by the policy's reason
    gain_sum: float = 0.0  # of the rounds for which the policy expected a gain, and their number
    gain_rounds: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float | None = None  # only from a profiled run
    verify_seconds: float | None = None
    rule: str | None = None  # how drafts were accepted, see Finished
    syncs: int = 0
    seed: int | None = None
    peak_memory: float = 0.0

    def add(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, Prefilled):
            self.prompt_tokens += event.prompt_tokens
            self.cached_tokens += event.cached_tokens
            self.prefill_seconds += event.seconds
            self.tokens += 1
        elif isinstance(event, Round):
            self._add_round(event)
        elif isinstance(event, Finished):
            self.syncs += event.syncs
            self.seed, self.rule = event.seed, event.rule
            self.peak_memory = max(self.peak_memory, event.peak_memory)

    def _add_round(self, event: Round) -> None:
        self.rounds += 1
        self.tokens += len(event.tokens)
        self.committed += event.accept_len
        self.proposed += len(event.proposed)
        self.verified += event.verified
        self.accepted += event.accepted
        self.proposal_len += event.proposal_len
        self.decode_seconds += event.seconds
        if event.reason:
            self.reasons[event.reason] = self.reasons.get(event.reason, 0) + 1
        if event.gain is not None:
            self.gain_sum += event.gain
            self.gain_rounds += 1
        missing = event.proposal_len - len(self.judged_at)
        for counts in (self.judged_at, self.accepted_at):
            counts.extend([0] * missing)
        for k in range(event.proposal_len):
            self.judged_at[k] += 1
            self.accepted_at[k] += event.accepted > k
        if event.draft_seconds is not None and event.verify_seconds is not None:
            self.draft_seconds = (self.draft_seconds or 0.0) + event.draft_seconds
            self.verify_seconds = (self.verify_seconds or 0.0) + event.verify_seconds

    @property
    def accept_len(self) -> float | None:
        """Committed tokens per round, the bonus or correction included."""
        return self.committed / self.rounds if self.rounds else None

    @property
    def expected_gain(self) -> float | None:
        """Mean rate that the policy expected of speculation, over plain decoding's."""
        return self.gain_sum / self.gain_rounds if self.gain_rounds else None

    @property
    def stood_down(self) -> int:
        """Rounds without drafts because speculation would have lost."""
        return self.reasons.get("stood down", 0)

    @property
    def past_limit(self) -> int:
        """Rounds without drafts because a block would have passed the drafter's own limit."""
        return self.reasons.get("drafter limit", 0)

    @property
    def verify_rate(self) -> float | None:
        """Share of verified positions (bonus row included) that were committed."""
        rows = self.proposal_len + self.rounds
        return self.committed / rows if rows else None

    @property
    def acceptance(self) -> list[float]:
        """Marginal prefix survival by position: rounds that accepted it / that verified it."""
        return [a / n for a, n in zip(self.accepted_at, self.judged_at, strict=True)]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens committed by rounds per second of decoding (prefill excluded)."""
        return self.committed / self.decode_seconds if self.decode_seconds else None

    @property
    def seconds(self) -> float:
        """Prefill and decoding together."""
        return self.prefill_seconds + self.decode_seconds

    def to_dict(self) -> dict[str, Any]:
        """Counts and ratios, JSON-ready."""
        ratios = (
            "accept_len", "verify_rate", "acceptance", "tokens_per_second", "seconds",
            "expected_gain", "stood_down",
        )  # fmt: skip
        return asdict(self) | {name: getattr(self, name) for name in ratios}
