"""How many drafts of a block are worth verifying: the border between loop and policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dspark_mlx.calibration import Calibration
from dspark_mlx.costs import Costs


@dataclass(frozen=True)
class Setting:
    """What a policy may know when a generation begins.

    `drafts`: the most drafts of a block. `foresight`: no confidence depends on a drawn draft
    (greedy decoding does not mind; a head without the Markov feature). `frozen`: decisions must
    repeat, so nothing timed or remembered from another run may enter. `costs`: for policies with
    `needs_costs`, else None. `learned`: a place that outlives the run (see Auto).
    """

    drafts: int
    greedy: bool = True
    confident: bool = True
    foresight: bool = False
    frozen: bool = True
    costs: Costs | None = None
    calibration: Calibration | None = None
    learned: dict[str, Any] = field(default_factory=dict)

    @property
    def hindsight(self) -> bool:
        """Whether a cut may look at the whole block: the committed text cannot depend on it."""
        return self.greedy or self.foresight


@dataclass(frozen=True)
class Plan:
    """What is decided before drafting.

    `draw`: drafts to draw, 0 for a plain step. `verify`: how many of them to verify, where no
    look is taken. `look`: wait for the confidences, and let `cut` decide; one more host
    synchronisation. `reason`: one or two words for the user. `gain`: expected rate over plain
    decoding's, where the policy knows. `standing_down`: no draft is wanted for a while, so the
    drafter's context may fall behind.
    """

    draw: int
    verify: int
    look: bool = False
    reason: str = ""
    gain: float | None = None
    standing_down: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a round; `judged` and `accepted` as in events.Round (`proposal_len`)."""

    drawn: int
    verified: int
    judged: int
    accepted: int
    looked: bool
    confidence: Sequence[float] | None
    context: int
    seconds: float


class Decider(Protocol):
    """A policy's state in one generation.

    At temperature > 0 the length must not depend on a token that it admits: whether draft k is
    verified may use anything known before draft k was drawn, and nothing else (method section
    8.3). Each policy argues this in its docstring.
    """

    def plan(self, drafts: int, context: int) -> Plan:
        """Before drafting: `drafts` can be drawn now, `context` positions are cached."""

    def cut(self, confidence: Sequence[float]) -> int:
        """After a look: how many to verify, from one confidence (0..1) per drawn draft."""

    def observe(self, outcome: Outcome) -> None:
        """After the round."""


class Cutoff(Protocol):
    """A policy: immutable, named by the options, shared by any number of generations."""

    @property
    def needs_confidence(self) -> bool:
        """Whether a drafter without a confidence head must be refused."""

    @property
    def needs_costs(self) -> bool:
        """Whether the pair's cost curve has to be known."""

    @property
    def causal(self) -> bool:
        """Whether it is lossless at any temperature; else sampling with it is refused."""

    def start(self, setting: Setting) -> Decider:
        """The state of a new generation."""


class Constant:
    """Base of policies whose decider needs no state: the policy is its own decider."""

    needs_confidence = False
    needs_costs = False
    causal = True

    def start(self, setting: Setting) -> Any:
        """Itself."""
        return self

    def cut(self, confidence: Sequence[float]) -> int:
        """All that were drawn."""
        return len(confidence)

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
