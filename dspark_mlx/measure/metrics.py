"""Acceptance over pooled rounds, as DeepSpec counts it (method section 10.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from dspark_mlx.events import Round

# upper ends of the context-length buckets, in positions before the anchor
BUCKETS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class RoundRecord:
    """What of a round the metrics need (definitions: `events.Round`)."""

    position: int  # of the anchor: how much context the block saw
    proposed: int
    verified: int
    proposal_len: int
    accepted: int
    accept_len: int
    confidence: tuple[float, ...] | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, event: Round) -> RoundRecord:
        """From the event of a round."""
        return cls(
            event.anchor_position, len(event.proposed), event.verified, event.proposal_len,
            event.accepted, event.accept_len, event.confidence, event.seconds,
        )  # fmt: skip


def to_columns(rounds: Sequence[RoundRecord]) -> dict[str, list[Any]]:
    """Rounds as one list per field, the form in which they are stored."""
    return {f.name: [getattr(r, f.name) for r in rounds] for f in fields(RoundRecord)}


def of_columns(columns: dict[str, list[Any]]) -> list[RoundRecord]:
    """The reverse of `to_columns`."""
    names = [f.name for f in fields(RoundRecord)]
    rows = (
        dict(zip(names, row, strict=True))
        for row in zip(*(columns[name] for name in names), strict=True)
    )
    return [
        RoundRecord(**row | {"confidence": row["confidence"] and tuple(row["confidence"])})
        for row in rows
    ]


@dataclass(frozen=True)
class Acceptance:
    """Pooled counts; every ratio is None where nothing could be counted.

    `judged[k]`, `accepted[k]`: rounds that verified, and accepted, more than k drafts.
    `reached[k]`: of those that verified more than k, the ones that accepted the k before.
    """

    rounds: int
    tokens: int
    proposed: int
    verified: int
    proposal_len: int
    judged: tuple[int, ...]
    accepted: tuple[int, ...]
    reached: tuple[int, ...]

    @classmethod
    def of(cls, rounds: Iterable[RoundRecord]) -> Acceptance:
        """Count rounds."""
        rounds = list(rounds)
        width = range(max((r.proposal_len for r in rounds), default=0))
        return cls(
            rounds=len(rounds),
            tokens=sum(r.accept_len for r in rounds),
            proposed=sum(r.proposed for r in rounds),
            verified=sum(r.verified for r in rounds),
            proposal_len=sum(r.proposal_len for r in rounds),
            judged=tuple(sum(r.proposal_len > k for r in rounds) for k in width),
            accepted=tuple(sum(r.accepted > k for r in rounds) for k in width),
            reached=tuple(
                sum(r.proposal_len > k and r.accepted >= k for r in rounds) for k in width
            ),
        )

    @property
    def accept_len(self) -> float | None:
        """Committed tokens per round, the bonus or correction included (Table 1)."""
        return _ratio(self.tokens, self.rounds)

    @property
    def verify_rate(self) -> float | None:
        """Share of verified rows, the bonus row included, that were committed (Figure 5)."""
        return _ratio(self.tokens, self.proposal_len + self.rounds)

    @property
    def proposal(self) -> float | None:
        """Drafts verified per round, cut after an accepted stop token."""
        return _ratio(self.proposal_len, self.rounds)

    @property
    def marginal(self) -> list[float | None]:
        """Rounds that accepted draft k / rounds that verified it: prefix survival."""
        return [_ratio(a, n) for a, n in zip(self.accepted, self.judged, strict=True)]

    @property
    def conditional(self) -> list[float | None]:
        """Rounds that accepted draft k / those that verified it and accepted all before it."""
        return [_ratio(a, n) for a, n in zip(self.accepted, self.reached, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Counts and ratios, JSON-ready."""
        counts = {f.name: getattr(self, f.name) for f in fields(self)}
        ratios = ("accept_len", "verify_rate", "proposal", "marginal", "conditional")
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in counts.items()}
        return plain | {name: getattr(self, name) for name in ratios}


def bucket_of(position: int) -> str:
    """The context-length bucket of a position, as "256-511"."""
    low = 0
    for high in BUCKETS:
        if position < high:
            return f"{low}-{high - 1}"
        low = high
    return f"{low}+"


def bucket_order(name: str) -> int:
    """Buckets sort by this."""
    return int(name.rstrip("+").split("-")[0])


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
