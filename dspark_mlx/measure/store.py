"""Results that survive an interruption: one JSON line each, appended, found again by their key."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from dspark_mlx.atomic import new_file
from dspark_mlx.errors import OptionError


def key_of(**parts: Any) -> str:
    """A short hash of everything that determines a result."""
    body = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(body.encode()).hexdigest()[:24]


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, and its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as work:
        work.write_text(text, encoding="utf-8")


class Store:
    """An append-only file of records by key, held open while it is used.

    A line that a crash left unfinished is cut off at opening; the record is made anew. Without
    a path nothing is kept beyond the process.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._read(path)
            self._file = path.open("a", encoding="utf-8")

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        good = 0
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                record = json.loads(line)
                self.records[record["key"]] = record
            except (ValueError, KeyError, TypeError) as error:
                raise OptionError(
                    f"{path} is not a file of results ({error}); choose another folder"
                ) from error
            good += len(line)
        if good < path.stat().st_size:
            os.truncate(path, good)

    def get(self, key: str) -> dict[str, Any] | None:
        """The record of this key, from this run or an earlier one."""
        return self.records.get(key)

    def put(self, key: str, record: dict[str, Any]) -> dict[str, Any]:
        """Keep a record: on disk before this returns."""
        record = {"key": key, **record}
        self.records[key] = record
        if self._file is not None:
            self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
            self._file.flush()
        return record

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._file is not None:
            self._file.close()
