"""What was measured on: the machine and the versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlx.core as mx

from dspark_mlx import __version__
from dspark_mlx.blas import active

PACKAGES = ("mlx", "mlx-lm", "numpy", "transformers")


def machine() -> dict[str, Any]:
    """The computer and the versions, JSON-ready."""
    device = mx.default_device()
    info = mx.device_info() if device != mx.cpu else {}
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": str(info.get("device_name") or _processor()),
        "cores": os.cpu_count(),
        "memory_gb": _memory(info),
        "device": str(device.type).rsplit(".", 1)[-1],
        "blas": active(),
        "python": platform.python_version(),
        "dspark-mlx": __version__,
        **{name: _version(name) for name in PACKAGES},
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory(info: dict[str, Any]) -> float | None:
    if "memory_size" in info:
        return round(info["memory_size"] / 1e9, 1)
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
