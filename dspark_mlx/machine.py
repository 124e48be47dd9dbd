"""The machine at hand: chip, memory, and the versions that its speed depends on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from . import blas


@cache
def chip() -> str:
    """The processor's name."""
    if sys.platform == "darwin":
        done = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout.strip() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def memory() -> float:
    """GB of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def device() -> str:
    """Where MLX computes: the device and, on Linux, the BLAS in place and its threads."""
    where = str(mx.default_device())
    if sys.platform == "darwin":
        return where
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or str(cores())
    return f"{where}, BLAS {blas.active() or 'reference'}, {threads} threads"


def versions() -> dict[str, str]:
    """Installed versions of what a round's time depends on."""
    return {name: version(name) for name in ("mlx", "mlx-lm")}


def identity() -> str:
    """One line that changes whenever measured seconds may no longer hold."""
    named = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"{chip()}, {device()}, {named}"
