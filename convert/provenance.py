"""Where a converted drafter came from, recorded in its config."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dspark_mlx import __version__
from dspark_mlx.checkpoints import DrafterSource


def provenance(source: DrafterSource, name: str) -> dict[str, Any]:
    """Name and packaging of the source, SHA-256 of its files, and the versions at work."""
    config = source.folder / "config.json"  # a GGUF file has none
    files = [*([config] if config.is_file() else []), *source.tensors.files]
    return {
        "name": _public(name, source.folder),
        "packaging": source.packaging,
        "sha256": {file.name: sha256(file) for file in files},
        "versions": {
            "dspark-mlx": __version__,
            "mlx": version("mlx"),
            "mlx-lm": version("mlx-lm"),
        },
    }


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _public(name: str, folder: Path) -> str:
    # a hub id says where to find the source again; a local path is the user's own business
    return folder.resolve().name if Path(name).expanduser().exists() else name
