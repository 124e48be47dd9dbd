"""Give MLX's Linux CPU backend a fast BLAS, before its first matrix product.

The Linux wheel of MLX links the reference BLAS. A BLAS that was loaded with global symbol
visibility before MLX itself takes its place, because the linker looks there first. Once MLX is
imported its symbols are bound, and it is too late.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from .errors import OptionError

VARIABLE = "DSPARK_MLX_BLAS"
OFF = ("off", "0", "none")
SONAMES = ("libopenblas.so.0", "libopenblasp.so.0", "libopenblas.so")
ADVICE = (
    "no fast BLAS, so float32 will be 5 to 90 times slower; install one with "
    f"`apt install libopenblas0-pthread` (or `pip install mkl`), or set {VARIABLE}=off to "
    "silence this line"
)

TOO_LATE = (
    "mlx was imported first, so it keeps its slow reference BLAS; import dspark_mlx before mlx and "
    f"mlx_lm (or set {VARIABLE}=off to silence this line)"
)
REMARKS = (ADVICE, TOO_LATE)

_loaded: str | None = None
_advice: str | None = None


def activate() -> None:
    """Load the first BLAS that works (Linux only). `DSPARK_MLX_BLAS` names one, or "off"."""
    global _loaded, _advice
    choice = os.environ.get(VARIABLE, "")
    if not sys.platform.startswith("linux") or choice.lower() in OFF:
        return
    if "mlx.core" in sys.modules:
        _advice = TOO_LATE
        return
    _loaded = next(filter(_loads, [choice] if choice else _candidates()), None)
    if _loaded is None:
        _advice = f"{VARIABLE}={choice} does not load" if choice else ADVICE


def active() -> str | None:
    """File name of the BLAS that was put in place, or None."""
    return _loaded


def advise() -> None:
    """Say once, in one line on stderr, when a fast BLAS could not be put in place.

    Raises OptionError when the variable names a library that does not load.
    """
    global _advice
    if _advice is not None and _advice not in REMARKS:
        raise OptionError(f"{_advice}; name another library, or off")
    if _advice is not None:
        print(f"dspark-mlx: {_advice}", file=sys.stderr)
        _advice = None


def _candidates() -> Iterator[str]:
    # the mkl wheel puts its libraries in the environment's own lib folder
    yield from (str(path) for path in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so.*")))
    yield from SONAMES


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
