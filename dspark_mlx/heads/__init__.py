"""Sequential heads (method section 4): a serial correction of the block's parallel logits."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from dspark_mlx.errors import UnsupportedError

if TYPE_CHECKING:
    from dspark_mlx.config import DrafterConfig

    from .base import SequentialHead

# head type as written in checkpoints -> where its class lives
HEADS = {
    "vanilla": "markov:VanillaHead",
    "gated": "gated:GatedHead",
    "rnn": "rnn:RnnHead",
}


def build_head(config: DrafterConfig) -> SequentialHead | None:
    """The head that `config.markov` names, with unset weights; None when there is none."""
    if config.markov is None:
        return None
    if config.markov.type not in HEADS:
        known = ", ".join(sorted(HEADS))
        raise UnsupportedError(
            f"sequential head {config.markov.type!r} is not supported; supported: {known}"
        )
    module, name = HEADS[config.markov.type].split(":")
    kind = getattr(import_module(f"{__name__}.{module}"), name)
    return cast("SequentialHead", kind(config))
