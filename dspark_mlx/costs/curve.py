"""The cost curve of a pair on one machine, at one context length (method section 8.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from dspark_mlx.errors import CheckpointError

# lower bounds of the context buckets, in positions; one curve each
BUCKETS = (0, 1024, 4096, 16384, 65536)


def bucket_of(context: int) -> int:
    """The lower bound of the bucket that a context length falls in."""
    return next(low for low in reversed(BUCKETS) if context >= low)


@dataclass(frozen=True)
class CostCurve:
    """Seconds. `verify[n - 1]`: a target pass over n rows; `verify[0]` is the plain step.

    `draft[m - 1]`: a block whose first m drafts are drawn. `overhead`: what a drafting round
    takes beyond both (negative where they overlap). `look`: the price of waiting for the
    confidences before verifying. `context`: cached positions while measuring. `sweeps`: how
    often everything was measured.
    """

    verify: tuple[float, ...]
    draft: tuple[float, ...]
    overhead: float = 0.0
    look: float = 0.0
    context: int = 0
    sweeps: int = 0

    def __post_init__(self) -> None:
        if len(self.verify) != len(self.draft) + 1 or not self.draft:
            raise ValueError(f"{len(self.verify)} rows for {len(self.draft)} drafts")
        if not all(0 < s < math.inf for s in (*self.verify, *self.draft)):
            raise ValueError("a time that is not positive")

    @classmethod
    def through(
        cls, verify: Mapping[int, float], draft: Mapping[int, float], drafts: int, **more: Any
    ) -> CostCurve:
        """Straight lines between measured points: rows -> seconds, drafts -> seconds."""
        rows = tuple(_between(verify, n) for n in range(1, drafts + 2))
        return cls(rows, tuple(_between(draft, m) for m in range(1, drafts + 1)), **more)

    @property
    def drafts(self) -> int:
        """The most drafts that this curve knows the price of."""
        return len(self.draft)

    @property
    def plain(self) -> float:
        """Seconds of a round without drafts."""
        return self.verify[0]

    def round(self, drawn: int, verified: int, looked: bool = False) -> float:
        """Seconds of a round that draws and verifies so many drafts (0: a plain step)."""
        if drawn == 0:
            return self.plain
        drafting = self.draft[drawn - 1] + self.overhead + (self.look if looked else 0.0)
        return max(drafting, 0.0) + self.verify[verified]

    def break_even(self, drafts: int) -> float:
        """The accept length from which a round of so many drafts beats plain decoding."""
        return self.round(drafts, drafts) / self.plain

    @property
    def can_pay(self) -> bool:
        """Whether any number of drafts might pay if every one of them were accepted.

        A tenth is left for the error of the measurement: a no is final, nothing is ever tried.
        """
        return any(self.break_even(m) < 1.1 * (1 + m) for m in range(1, self.drafts + 1))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, body: Any, where: str) -> CostCurve:
        """Read `to_dict`'s form; CheckpointError when it is anything else."""
        try:
            if set(body) != {f.name for f in fields(cls)}:
                raise ValueError("other keys than a cost curve has")
            lists = {k: tuple(map(float, body[k])) for k in ("verify", "draft")}
            return cls(**body | lists)
        except (TypeError, ValueError, KeyError) as error:
            raise CheckpointError(f"{where} is damaged ({error}); delete it") from error


def _between(points: Mapping[int, float], at: int) -> float:
    known: Sequence[int] = sorted(points)
    low = max((k for k in known if k <= at), default=known[0])
    high = min((k for k in known if k >= at), default=known[-1])
    if low == high:
        return points[low]
    share = (at - low) / (high - low)
    return points[low] + share * (points[high] - points[low])
