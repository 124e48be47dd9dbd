"""What was measured on: the machine and the versions."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dspark_mlx import __version__
from dspark_mlx.machine import chip, cores, device, memory

PACKAGES = ("mlx", "mlx-lm", "numpy", "transformers")


def machine() -> dict[str, Any]:
    """The computer and the versions, JSON-ready."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": chip(),
        "cores": cores(),
        "memory_gb": round(memory(), 1),
        "device": device(),
        "python": platform.python_version(),
        "dspark-mlx": __version__,
        **{name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
