"""A target and the drafter that goes with it, checked to fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from .config import DrafterConfig
from .drafters.base import Drafter
from .errors import CheckpointError, PairError
from .targets.base import Tapped, Target
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
            check_fit(self.target, self.drafter.config)
        object.__setattr__(self, "tapped", self.target.tapped(ids))


class Shape(Protocol):
    """What has to be known of a target to say whether a drafter fits."""

    @property
    def name(self) -> str:
        """What to call it in an error."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""

    @property
    def depth(self) -> int:
        """Number of decoder layers."""


@dataclass(frozen=True)
class ConfigShape:
    """A target's shape by its config.json alone, no weights loaded."""

    name: str
    hidden_size: int
    vocab_size: int
    depth: int

    @classmethod
    def of(cls, config: dict[str, Any], name: str) -> ConfigShape:
        """Read a target's config; CheckpointError names a size that is not there."""
        text = config.get("text_config") or config
        sizes = {}
        for key in ("hidden_size", "vocab_size", "num_hidden_layers"):
            value = text.get(key, config.get(key))
            if type(value) is not int:
                raise CheckpointError(f"{name}: config.json has no {key}; is this a target?")
            sizes[key] = value
        return cls(name, sizes["hidden_size"], sizes["vocab_size"], sizes["num_hidden_layers"])


def check_fit(target: Shape, drafter: DrafterConfig, name: str = "the drafter") -> None:
    """Raise PairError naming every value in which target and drafter disagree."""
    name = drafter.source.get("name", name) if name == "the drafter" else name
    wrong = [
        f"{what} {theirs} in the target, {ours} in the drafter"
        for what, theirs, ours in (
            ("hidden size", target.hidden_size, drafter.hidden_size),
            ("vocabulary", target.vocab_size, drafter.vocab_size),
            ("number of target layers", target.depth, drafter.num_target_layers),
        )
        if ours not in (theirs, None)
    ]
    deepest = max(drafter.target_layer_ids)
    if deepest >= target.depth:
        wrong.append(f"tapped layer {deepest} of a target with {target.depth} layers")
    if drafter.mask_token_id is not None and drafter.mask_token_id >= target.vocab_size:
        wrong.append(
            f"mask token {drafter.mask_token_id} beyond the target's vocabulary of "
            f"{target.vocab_size}"
        )
    if wrong:
        raise PairError(f"{target.name} and {name} do not fit: {'; '.join(wrong)}")
