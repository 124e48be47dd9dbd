"""Where a converted drafter came from, recorded in its config."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from dspark_mlx import __version__
from dspark_mlx.checkpoints import DrafterSource
from dspark_mlx.fetch import sha256_of


def provenance(source: DrafterSource, name: str) -> dict[str, Any]:
    """Name and packaging of the source, SHA-256 of its files, and the versions at work."""
    config = source.folder / "config.json"  # a GGUF file has none
    files = [*([config] if config.is_file() else []), *source.tensors.files]
    return {
        "name": _public(name, source.folder),
        "packaging": source.packaging,
        "sha256": {file.name: sha256_of(file) for file in files},
        "versions": {
            "dspark-mlx": __version__,
            "mlx": version("mlx"),
            "mlx-lm": version("mlx-lm"),
        },
    }


def _public(name: str, folder: Path) -> str:
    # a hub id says where to find the source again; a local path is the user's own business
    return folder.resolve().name if Path(name).expanduser().exists() else name
