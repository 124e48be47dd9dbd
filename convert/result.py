"""What a conversion did: the figures behind its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx

from dspark_mlx.checkpoints import DrafterSource
from dspark_mlx.checkpoints.mapping import MappedTensors
from dspark_mlx.config import DrafterConfig
from dspark_mlx.sharing import DIFFERS


@dataclass
class Conversion:
    """What was done. Sizes in bytes; `dropped` maps a tensor to the reason it was left out."""

    output: Path
    packaging: str
    config: DrafterConfig
    tensors: int = 0
    parameters: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    read: int = 0  # stored tensors that are in use
    renamed: dict[str, tuple[str, ...]] = field(default_factory=dict)  # to what -> from what
    dropped: dict[str, str] = field(default_factory=dict)
    quantized: dict[str, int] = field(default_factory=dict)  # part -> bits
    unquantized: list[str] = field(default_factory=list)
    round_bytes: tuple[int, int] = (0, 0)  # of the source, of the result (see bytes_per_round)

    @property
    def lossy(self) -> bool:
        """Whether the result drafts otherwise than the source."""
        config = self.config
        reduced = config.draft_vocab_size is not None
        return bool(config.quantization) or reduced or DIFFERS in self.dropped.values()


def bytes_per_round(weights: Mapping[str, mx.array], config: DrafterConfig) -> int:
    """Bytes of a drafter's own weights that one full block reads.

    Embedding tables are read by the row; the Markov output table once per draft.
    """
    drafts = config.block_size - config.predict_from_slot
    total = 0
    for name, value in weights.items():
        if name.startswith(("embed_tokens", "markov_head.markov_w1")):
            continue
        total += value.nbytes * (drafts if name.startswith("markov_head") else 1)
    return total


def note_origins(found: DrafterSource, result: Conversion) -> None:
    """Which stored tensors became which of ours, and which became none."""
    tensors = found.tensors
    if isinstance(tensors, MappedTensors):
        origins, stored = tensors.origins, tensors.stored
    else:
        origins, stored = {name: (name,) for name in tensors.infos}, frozenset(tensors.infos)
    used = {name for sources in origins.values() for name in sources}
    result.read = len(used)
    result.renamed = {ours: sources for ours, sources in origins.items() if sources != (ours,)}
    result.dropped |= dict.fromkeys(sorted(stored - used), "of no use to a drafter")
