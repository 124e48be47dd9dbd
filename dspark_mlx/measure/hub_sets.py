"""DeepSpec's data sets by name: which file of which hub repository, and how a row is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.constants import HF_HUB_OFFLINE
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from dspark_mlx.errors import FetchError, OptionError

from .datasets import DataSet, from_file, of_texts, prompt_of

STEPS = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def _math(text: str) -> str:
    return text + STEPS


def _code(text: str) -> str:
    task = "Write a solution to the following problem and make sure that it passes the tests:"
    return f"{task}\n```python\n{text}\n```"


def _plain(text: str) -> str:
    return text


@dataclass(frozen=True)
class HubSet:
    """`quota`: rows that the paper used (method section 10.1); `key`: where a row's text is."""

    repo: str
    file: str
    key: tuple[str, ...]
    quota: int
    ask: Callable[[str], str] = _plain


HUB_SETS = {
    "gsm8k": HubSet(
        "openai/gsm8k", "main/test-00000-of-00001.parquet", ("question",), 500, _math
    ),
    "math500": HubSet("HuggingFaceH4/MATH-500", "test.jsonl", ("problem",), 500, _math),
    "aime25": HubSet("math-ai/aime25", "test.jsonl", ("problem",), 30, _math),
    "humaneval": HubSet(
        "openai/openai_humaneval",
        "openai_humaneval/test-00000-of-00001.parquet",
        ("prompt",),
        164,
        _code,
    ),
    "mbpp": HubSet(
        "google-research-datasets/mbpp",
        "sanitized/test-00000-of-00001.parquet",
        ("prompt",),
        256,
    ),
    "mt-bench": HubSet(
        "HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl", ("turns", "prompt"), 80
    ),
}  # fmt: skip


def named(name: str, folder: Path | None = None) -> DataSet:
    """A data set by name: from DeepSpec's jsonl files in `folder`, or from the hub.

    Raises OptionError for an unknown name, FetchError where the hub is out of reach.
    """
    if folder is not None:
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            there = ", ".join(sorted(p.stem for p in folder.glob("*.jsonl"))) or "no jsonl file"
            raise OptionError(f"{folder} has no {name}.jsonl; it has {there}")
        return from_file(path)
    if name not in HUB_SETS:
        raise OptionError(
            f"unknown data set {name!r}; known: built-in, chat, code, math, {', '.join(HUB_SETS)}; "
            "any other comes with --file FILE, or --data DIR that holds NAME.jsonl"
        )
    entry = HUB_SETS[name]
    path = _fetched(entry)
    rows = list(_rows(path))
    texts = [
        entry.ask(prompt_of(row, f"{entry.repo} {entry.file} row {i}", entry.key))
        for i, row in enumerate(rows)
    ]
    if not texts:
        raise OptionError(f"{path} has no rows; delete it to have it fetched anew")
    return of_texts(name, f"{entry.repo}/{entry.file}", texts)


def _fetched(entry: HubSet) -> Path:
    """The file in the hub's cache, asked of the network only when it is not there."""
    where: dict[str, Any] = {"repo_type": "dataset"}
    try:
        return Path(hf_hub_download(entry.repo, entry.file, local_files_only=True, **where))
    except LocalEntryNotFoundError as error:
        if HF_HUB_OFFLINE:
            raise FetchError(
                f"the data set {entry.repo} is not in the hub cache and HF_HUB_OFFLINE is set; "
                "go online once, or use --data DIR, --file FILE or --sets built-in"
            ) from error
    try:
        return Path(hf_hub_download(entry.repo, entry.file, **where))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FetchError(
            f"could not fetch the data set {entry.repo} ({reason}); check the network, or use "
            "--data DIR, --file FILE or --sets built-in"
        ) from error


def _rows(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise OptionError(f"{path} line {number} is not JSON: {error}") from error


def _parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise OptionError(
            f"{path.name} is a parquet file, which needs pyarrow: pip install 'pyarrow', or give "
            "DeepSpec's jsonl files with --data DIR"
        ) from error
    try:
        rows: list[Any] = read_table(path).to_pylist()
    except ArrowException as error:
        raise OptionError(f"{path} is not a readable parquet file: {error}") from error
    return rows
