"""A target and the drafter that goes with it, checked to fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .drafters.base import Drafter
from .fit import check_fit, tokenizer_strings
from .targets.base import Target
from .targets.tapped import Tapped
from .tuning import Tuning


@dataclass(frozen=True)
class Pair:
    """What `load` returns and every generation takes; it holds no state of a generation.

    `target.model` is the untouched mlx-lm model, `tokenizer` mlx-lm's wrapper. `drafter` is
    None for plain decoding. `thinking` is the chat template's default for this pair (None:
    the template's own). `tuning` is what was measured and fitted for this pair on this machine.
    """

    target: Target
    drafter: Drafter | None
    tokenizer: Any
    thinking: bool | None = None
    stop_ids: frozenset[int] = frozenset()
    tuning: Tuning = field(default_factory=Tuning, repr=False, compare=False)
    tapped: Tapped = field(init=False)

    def __post_init__(self) -> None:
        ids = () if self.drafter is None else self.drafter.config.target_layer_ids
        if self.drafter is not None:
            check_fit(
                self.target,
                self.drafter.config,
                tokens=lambda: tokenizer_strings(self.tokenizer),
            )
        object.__setattr__(self, "tapped", self.target.tapped(ids))
