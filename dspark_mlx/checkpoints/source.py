"""Open a drafter in any known packaging: its config, normalised, and its tensors, unread."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, Protocol

from dspark_mlx.config import DrafterConfig
from dspark_mlx.errors import CheckpointError

from . import converted, deepspec
from .tensors import TensorInfo, TensorSource, open_tensors


class Packaging(Protocol):
    """One way of packing a drafter; each is a module of this package."""

    NAME: str
    matches: Callable[[Mapping[str, Any]], bool]
    resolve: Callable[[Mapping[str, Any], Mapping[str, TensorInfo], str], DrafterConfig]


# tried in order; every one recognises its own files only
PACKAGINGS: tuple[Any, ...] = (converted, deepspec)


@dataclass(frozen=True)
class DrafterSource:
    """A drafter on disk. Tensor names in `tensors` are those of the modules in `drafters`."""

    folder: Path
    packaging: str
    config: DrafterConfig
    tensors: TensorSource

    @property
    def converted(self) -> bool:
        """Whether this is a folder that `dspark-mlx convert` wrote."""
        return self.packaging == converted.NAME


def open_drafter(folder: Path) -> DrafterSource:
    """Recognise and open a drafter folder, reading no weights.

    Raises CheckpointError (or UnsupportedError) with what was found and what was expected.
    """
    config, where = read_config(folder), str(folder / "config.json")
    packaging = next((p for p in PACKAGINGS if p.matches(config)), None)
    if packaging is None:
        raise CheckpointError(
            f"{where}: not a drafter of a known packaging (architectures "
            f"{short(config.get('architectures'))}, model_type {short(config.get('model_type'))}); "
            f"known: {', '.join(p.NAME for p in PACKAGINGS)}"
        )
    tensors = open_tensors(folder)
    resolved = packaging.resolve(config, tensors.infos, where)
    return DrafterSource(folder, packaging.NAME, resolved, tensors)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a dict; CheckpointError when it is absent or no JSON object."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give the checkpoint's folder")
    path = folder / "config.json"
    try:
        if not path.is_file():
            found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
            raise CheckpointError(f"{folder} has no config.json (found: {found})")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}, expected a JSON object")
    return config
