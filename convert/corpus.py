"""The text over which tokens are counted: files, what the target says, or a built-in corpus."""

from __future__ import annotations

import json
import pydoc_data.topics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark_mlx.convert.generations import own_counts
from dspark_mlx.errors import OptionError
from dspark_mlx.loading import load

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Corpus:
    """Files of text, and how many tokens the target generates, after prompts of `prompts` files.

    Without any of them the built-in corpus stands alone.
    """

    texts: Sequence[str | Path] = ()
    generate: int = 0
    prompts: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        if type(self.generate) is not int or self.generate < 0:
            raise OptionError(f"tokens to generate must be 0 or more, not {self.generate!r}")
        if self.prompts and not self.generate:
            raise OptionError("prompts are for the target to answer: say for how many tokens")

    @property
    def is_built_in(self) -> bool:
        """Whether nothing was named."""
        return not (self.texts or self.generate)

    def counts(self, target: Path, tokenizer: Any, progress: Progress | None) -> Counter[int]:
        """Tokens counted over everything named; `target` is the target's folder."""
        if self.is_built_in:
            return count_tokens(built_in_texts(), tokenizer)
        counts = count_tokens(read_texts(self.texts), tokenizer)
        prompts = list(read_prompts(self.prompts))
        if self.generate:
            counts += own_counts(load(target, False), self.generate, prompts, progress)
        return counts


def count_tokens(texts: Iterable[str], tokenizer: Any) -> Counter[int]:
    """How often each token occurs in the texts."""
    counts: Counter[int] = Counter()
    for text in texts:
        for line in text.splitlines(keepends=True):  # a long text makes tokenizers complain
            counts.update(tokenizer.encode(line, add_special_tokens=False))
    return counts


def read_texts(paths: Iterable[str | Path]) -> Iterator[str]:
    """Texts of files: every string inside a .jsonl line, otherwise the file as it is."""
    for path, content in _contents(paths):
        if path.suffix == ".jsonl":
            yield from (s for value in _json_lines(path, content) for s in _strings(value))
        else:
            yield content


def read_prompts(paths: Iterable[str | Path]) -> Iterator[str]:
    """Prompts of files: the first string of a .jsonl line, otherwise every line."""
    for path, content in _contents(paths):
        if path.suffix == ".jsonl":
            firsts = (next(_strings(value), "") for value in _json_lines(path, content))
        else:
            firsts = iter(content.splitlines())
        yield from (text for text in firsts if text.strip())


def built_in_texts() -> list[str]:
    """A corpus that every machine has: the language reference that Python itself ships."""
    return list(pydoc_data.topics.topics.values())


def _contents(paths: Iterable[str | Path]) -> Iterator[tuple[Path, str]]:
    for name in paths:
        try:
            path = Path(name).expanduser()
            yield path, path.read_text(encoding="utf-8")
        except (OSError, ValueError, RuntimeError) as error:
            raise OptionError(f"cannot read the text {name}: {error}") from error


def _json_lines(path: Path, content: str) -> Iterator[Any]:
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise OptionError(f"{path}, line {number} is not JSON: {error}") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
