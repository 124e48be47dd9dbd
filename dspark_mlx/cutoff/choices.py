"""What a round could do, each with its expected tokens and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark_mlx.costs import Prices

MEMORY = 64.0  # rounds that the record of imagined looks goes back


@dataclass(frozen=True)
class Choice:
    """Draw and verify so many drafts (with a look: verify at most so many)."""

    draw: int
    verify: int
    look: bool
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Expected tokens per second."""
        return self.tokens / self.seconds

    def excess(self, rate: float) -> float:
        """Seconds that it is expected to lose against going on at `rate`; 0 if it gains."""
        return max(self.seconds - self.tokens / rate, 0.0)


class Looks:
    """For m drafts with a look: decayed means of the tokens and verify seconds they came to."""

    def __init__(self, drafts: int) -> None:
        self._weight = 0.0
        self.tokens, self.seconds = [0.0] * drafts, [0.0] * drafts

    def add(
        self, lengths: Sequence[int], survival: Sequence[float], verify: Sequence[float]
    ) -> None:
        """One round: the length for each m, its survival, and seconds[l] beyond a plain row."""
        self._weight += 1.0
        share = max(1 / self._weight, 1 / MEMORY)
        sums = [0.0]
        for alive in survival:
            sums.append(sums[-1] + alive)
        for m, length in enumerate(lengths):
            self.tokens[m] += share * (1.0 + sums[length] - self.tokens[m])
            self.seconds[m] += share * (verify[length] - self.seconds[m])

    @property
    def known(self) -> bool:
        """Whether any round was recorded."""
        return self._weight > 0


def possible(typical: Sequence[float], looks: Looks, prices: Prices, drafts: int) -> list[Choice]:
    """Every number of drafts up to `drafts`, verified all or after a look."""
    found, tokens = [], 1.0
    for m in range(1, drafts + 1):
        tokens += typical[m - 1]
        found.append(Choice(m, m, False, tokens, prices.round(m, m)))
        if looks.known:
            seconds = prices.round(m, 0, looked=True) + looks.seconds[m - 1]
            found.append(Choice(m, m, True, looks.tokens[m - 1], seconds))
    return found
