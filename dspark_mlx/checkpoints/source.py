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

from . import (
    converted,
    deepspec,
    gguf,
    lfm2,
    nvidia,
    qwen35,
    refused,
    specforge,
    speculators,
    speculators_eagle3,
    zlab,
)
from .gguf_file import GgufFile
from .tensors import TensorInfo, TensorSource, open_tensors


class Packaging(Protocol):
    """One way of packing a drafter; each is a module of this package.

    A packaging may lack `view`, which gives the tensors under our names (`resolve` gets those),
    and `precheck`, which may refuse a config before any weight file is opened.
    """

    NAME: str
    matches: Callable[[Mapping[str, Any]], bool]
    precheck: Callable[[Mapping[str, Any], str], None]
    view: Callable[[Mapping[str, Any], TensorSource, str], TensorSource]
    resolve: Callable[[Mapping[str, Any], Mapping[str, TensorInfo], str], DrafterConfig]


# every one recognises its own files only; `refused` comes before the forms that it resembles
PACKAGINGS: tuple[Any, ...] = (
    converted,
    gguf,
    refused,
    speculators_eagle3,
    speculators,
    specforge,
    lfm2,
    qwen35,
    nvidia,
    zlab,
    deepspec,
)
SIDE_FILES = {"hf_quant_config": "hf_quant_config.json"}  # key to find it under -> its name


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
    config, where = _describe(folder)
    packaging = next((p for p in PACKAGINGS if p.matches(config)), None)
    if packaging is None:
        raise CheckpointError(
            f"{where}: not a drafter of a known packaging (architectures "
            f"{short(config.get('architectures'))}, model_type {short(config.get('model_type'))}); "
            f"known: {', '.join(p.NAME for p in PACKAGINGS if p is not refused)}"
        )
    if hasattr(packaging, "precheck"):
        packaging.precheck(config, where)
    tensors = open_tensors(folder)
    try:
        if hasattr(packaging, "view"):
            tensors = packaging.view(config, tensors, where)
        resolved = packaging.resolve(config, tensors.infos, where)
    except BaseException:
        tensors.close()
        raise
    return DrafterSource(folder, packaging.NAME, resolved, tensors)


def _describe(folder: Path) -> tuple[dict[str, Any], str]:
    """What says of which packaging a drafter is, and where that stands."""
    if (lone := _lone_gguf(folder)) is not None:
        with GgufFile(lone) as file:
            return file.metadata, str(lone)
    config = read_config(folder)
    for key, name in SIDE_FILES.items():
        if (folder / name).is_file():
            config = {key: read_json(folder / name)} | config
    return config, str(folder / "config.json")


def _lone_gguf(folder: Path) -> Path | None:
    """The one GGUF file that `folder` is, or holds without any config.json.

    Raises CheckpointError where it holds several.
    """
    try:
        alone = folder.is_dir() and not (folder / "config.json").exists()
        files = sorted(folder.glob("*.gguf")) if alone else [folder]
        files = [path for path in files if path.suffix == ".gguf" and path.is_file()]
    except OSError:  # no access: whoever reads the config says so
        return None
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:8]) + (", ..." if len(files) > 8 else "")
        raise CheckpointError(f"{folder} holds several GGUF files: {names}; name one of them")
    return files[0] if files else None


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as a dict; CheckpointError when it is absent or no JSON object."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give the checkpoint's folder")
    path = folder / "config.json"
    try:
        if not path.is_file():
            found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
            raise CheckpointError(f"{folder} has no config.json (found: {found})")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError when it is none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}, expected a JSON object")
    return config
