"""Drafters that are recognised by their marks and refused by name, with what they would need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from dspark_mlx.errors import UnsupportedError

from . import reading
from .reading import Config

NAME = "recognised, not supported"


@dataclass(frozen=True)
class Refusal:
    """`architectures` or any key of `marks` (dotted) gives it away; `needs` completes a line."""

    name: str
    needs: str
    architectures: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


REFUSALS = (
    Refusal(
        "DFlash 2",
        "grouped dynamic convolutions around attention and MLP, and a top-k candidate selector; "
        "use a DFlash or DSpark drafter for the same target",
        ("DFlash2DraftModel", "DFlash2Speculator"),
        ("selector_rank", "conv_kernel_size", "dflash_config.selector_rank",
         "dflash_config.conv_kernel_size"),
    ),
    Refusal(
        "DeepSeek-V4's embedded DSpark drafter (mtp.*)",
        "latent attention, experts and hyper-connections in the drafter, fp8 and fp4 weights "
        "with block scales, and a DeepSeek-V4 target",
        (),
        ("dspark_block_size", "dspark_target_layer_ids", "dspark_noise_token_id"),
    ),
    Refusal(
        "a DSpark drafter with log-SNR conditioning",
        "the log-SNR features that such a drafter adds to its embeddings",
        (),
        ("log_snr_conditioning",),
    ),
)  # fmt: skip


def matches(config: Config) -> bool:
    """Whether the config bears a mark of one of `REFUSALS`."""
    return _found(config) is not None


def precheck(config: Config, where: str) -> NoReturn:
    """Raise UnsupportedError with the drafter's name and what would be needed."""
    found = _found(config)
    assert found is not None
    raise UnsupportedError(f"{where}: {found.name} is not supported yet; it needs {found.needs}")


def _found(config: Config) -> Refusal | None:
    one = reading.one_architecture(config)
    for refusal in REFUSALS:
        if one in refusal.architectures or config.get("speculators_model_type") == "dflash2":
            return refusal
        if any(reading.found_at(config, mark) for mark in refusal.marks):
            return refusal
    return None
