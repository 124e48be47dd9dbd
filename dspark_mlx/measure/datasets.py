"""Prompts to measure on: built-in ones, DeepSpec's data sets by name, and any file."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspark_mlx.errors import OptionError
from dspark_mlx.prompts import BUILT_IN

SEED = 980406  # DeepSpec's
SEPARATOR = "---"  # a line of a text file between prompts of several lines
TEXT_KEYS = ("turns", "prompt", "question", "problem", "instruction", "text", "messages")

# data set -> its domain (paper section 4.1); a set that is not listed is its own domain
DOMAINS = {
    "gsm8k": "math", "math500": "math", "aime25": "math", "aime24": "math",
    "humaneval": "code", "mbpp": "code", "livecodebench": "code", "lbpp": "code",
    "mt-bench": "chat", "alpaca": "chat", "arena-hard-v2": "chat",
    **{name: name for name in BUILT_IN},
}  # fmt: skip


@dataclass(frozen=True)
class Example:
    """One prompt: `index` is its place in its file, whatever was picked from it."""

    set: str
    domain: str
    index: int
    text: str

    @property
    def label(self) -> str:
        """How a message names it, counted from 0 as DeepSpec does."""
        return f"{self.set} {self.index}"


@dataclass(frozen=True)
class DataSet:
    """A named list of prompts. `sha256` is of the prompts themselves, `source` of their place."""

    name: str
    source: str
    examples: tuple[Example, ...]

    @property
    def sha256(self) -> str:
        """Content hash of the prompts, in order."""
        body = json.dumps([e.text for e in self.examples], ensure_ascii=False)
        return hashlib.sha256(body.encode()).hexdigest()

    def picked(self, count: int | None, seed: int, first: bool = False) -> DataSet:
        """At most `count` prompts: the first ones, or DeepSpec's way, shuffled by the seed."""
        if count is None or count >= len(self.examples):
            return self
        order = list(range(len(self.examples)))
        if not first:
            random.Random(seed).shuffle(order)
        return replace(self, examples=tuple(self.examples[i] for i in order[:count]))


def of_texts(name: str, source: str, texts: Sequence[str]) -> DataSet:
    """A data set of these prompts."""
    domain = DOMAINS.get(name, name)
    examples = tuple(Example(name, domain, i, text) for i, text in enumerate(texts))
    return DataSet(name, source, examples)


def built_in(names: Sequence[str] = ()) -> list[DataSet]:
    """The prompts shipped with this package, one set per domain."""
    return [of_texts(n, "built in", t) for n, t in BUILT_IN.items() if n in (names or BUILT_IN)]


def from_file(path: Path, name: str | None = None) -> DataSet:
    """Prompts of a jsonl file (one object per line) or a text file (one prompt per line).

    In a text file with lines of only `---`, these stand between prompts of several lines.
    Raises OptionError for a file that is missing, empty, or of another form.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise OptionError(f"cannot read prompts from {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{path} is not UTF-8 text (byte {error.start}); give a jsonl or a text file"
        ) from error
    lines = text.split("\n")
    if path.suffix.lower() in (".jsonl", ".json", ".ndjson"):
        prompts = [
            _of_line(line, f"{path} line {n}") for n, line in enumerate(lines, 1) if line.strip()
        ]
    elif any(line.strip() == SEPARATOR for line in lines):
        prompts = _between_separators(lines)
    else:
        prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise OptionError(f"{path} has no prompts; give one per line, or a jsonl file")
    return of_texts(name or path.stem, str(path), prompts)


def _between_separators(lines: Sequence[str]) -> list[str]:
    prompts: list[str] = []
    part: list[str] = []
    for line in [*lines, SEPARATOR]:
        if line.strip() == SEPARATOR:
            prompts.append("\n".join(part).strip())
            part = []
        else:
            part.append(line)
    return [prompt for prompt in prompts if prompt]


def _of_line(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise OptionError(
            f"{where} is not JSON ({error}); a jsonl file has one object per line"
        ) from error
    return prompt_of(row, where)


def prompt_of(row: Any, where: str, keys: Sequence[str] = TEXT_KEYS) -> str:
    """The first user turn of a row in any of the known forms; OptionError names what it has."""
    if isinstance(row, str) and row.strip():
        return row
    found = ", ".join(map(str, row))[:200] if isinstance(row, dict) else type(row).__name__
    for key in keys:
        text = _first_turn(row.get(key)) if isinstance(row, dict) else None
        if text is not None and text.strip():
            return text
    raise OptionError(f"{where} has {found}; expected text under one of {', '.join(keys)}")


def _first_turn(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    for turn in value:  # texts, or messages of which the user's first one counts
        if isinstance(turn, str):
            return turn
        if isinstance(turn, dict) and turn.get("role") == "user":
            content = turn.get("content")
            return content if isinstance(content, str) else None
    return None
