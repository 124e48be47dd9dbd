"""A session on disk: mlx-lm's prompt cache, the drafter's context, and what they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from .atomic import new_folder
from .errors import CheckpointError, PairError, UserError
from .fingerprint import fingerprints
from .pair import Pair
from .state import State

FORMAT, VERSION = "dspark-mlx session", 1
HEAD, CACHE, CONTEXT = "session.json", "cache.safetensors", "context.safetensors"
# what json, mlx and mlx-lm raise over files that are not as they wrote them
DAMAGE = (
    CheckpointError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    RuntimeError,
    OSError,
)


def save(folder: Path, state: State, head: dict[str, Any]) -> None:
    """Write the folder whole or not at all. UserError where another kind of folder is there."""
    if folder.exists() and not (folder / HEAD).is_file():
        raise UserError(f"{folder} exists and is not a saved session; choose another folder")
    state.repair()
    state.catch_up()
    arrays, numbers = ({}, {}) if state.context is None else state.context.state()
    body = {
        "format": FORMAT,
        "version": VERSION,
        "models": fingerprints(state.pair),
        "names": {"target": state.pair.target.name},
        "tokens": state.tokens,
        "positions": state.length,
        "context": numbers,
        **head,
    }
    with new_folder(folder, overwrite=True) as work:
        if state.length:
            state.cache.save(work / CACHE, {"tokens": json.dumps(state.tokens[: state.length])})
        if arrays:
            mx.save_safetensors(str(work / CONTEXT), arrays)
        (work / HEAD).write_text(json.dumps(body, ensure_ascii=False), encoding="utf-8")


def load(folder: Path, pair: Pair) -> tuple[State, dict[str, Any]]:
    """A state for the same pair, and the rest of what was saved.

    Raises PairError where target or drafter differ, CheckpointError where a file is damaged.
    """
    body = _head(folder)
    for part, ours in fingerprints(pair).items():
        if body["models"].get(part) != ours:
            known = body["names"].get(part) or body["models"].get(part) or "none"
            raise PairError(
                f"{folder} was saved with another {part} ({known[:24]}) than the one loaded; "
                f"load the model it was made with"
            )
    state = State(pair)
    try:
        if body["positions"]:
            cache, _ = pair.target.load_cache(folder / CACHE)
            state.adopt(body["tokens"], cache, _context(folder, pair, body))
            if state.length != body["positions"]:
                raise ValueError(f"{state.length} positions, expected {body['positions']}")
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{folder} cannot be read back: {reason}") from error
    return state, body


def _head(folder: Path) -> dict[str, Any]:
    try:
        body: Any = json.loads((folder / HEAD).read_text(encoding="utf-8"))
        if body["format"] != FORMAT or body["version"] != VERSION:
            raise ValueError(f"format {body['format']!r}, version {body['version']!r}")
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a saved session: it has no {HEAD}") from error
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{folder / HEAD} is not a saved session's: {reason}") from error
    return dict(body)


def _context(folder: Path, pair: Pair, body: dict[str, Any]) -> Any:
    if pair.drafter is None:
        return None
    context = pair.drafter.start()
    path = folder / CONTEXT
    arrays: Any = mx.load(str(path)) if path.is_file() else {}
    context.restore(arrays, body["context"])
    return context
