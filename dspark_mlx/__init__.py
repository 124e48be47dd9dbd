"""Lossless DSpark speculative decoding for local language models on MLX."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import blas as _blas
from ._version import __version__

if TYPE_CHECKING:
    from .api import Generation, Response, generate, stream, stream_generate
    from .errors import DSparkError, UserError
    from .events import Event, Failed, Finished, Prefilled, Prefilling, Round
    from .loading import load
    from .pair import Pair
    from .session import ChatSession
    from .stats import Stats

_blas.activate()  # before anything can run a matrix product

# public name -> module that holds it, imported at first use; no module may bear a public
# function's name, or importing it would hide the function
_PUBLIC = {
    "DSparkError": "errors",
    "UserError": "errors",
    "Event": "events",
    "Failed": "events",
    "Finished": "events",
    "Prefilled": "events",
    "Prefilling": "events",
    "Round": "events",
    "Generation": "api",
    "Response": "api",
    "generate": "api",
    "stream": "api",
    "stream_generate": "api",
    "load": "loading",
    "Pair": "pair",
    "ChatSession": "session",
    "Stats": "stats",
}

__all__ = [
    "ChatSession",
    "DSparkError",
    "Event",
    "Failed",
    "Finished",
    "Generation",
    "Pair",
    "Prefilled",
    "Prefilling",
    "Response",
    "Round",
    "Stats",
    "UserError",
    "__version__",
    "generate",
    "load",
    "stream",
    "stream_generate",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
