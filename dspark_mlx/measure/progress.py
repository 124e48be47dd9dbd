"""How far a long measurement is and how long it will still take, on stderr."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """A line that rewrites itself on a terminal; elsewhere a line every `every` seconds."""

    def __init__(
        self, total: int, what: str, file: TextIO | None = None, every: float = 15.0
    ) -> None:
        self.total, self.what, self.every = total, what, every
        self._file = sys.stderr if file is None else file
        self._live = self._file.isatty()
        self._begun = self._shown = time.monotonic()
        self._done = self._new = 0

    def step(self, note: str = "", known: bool = False) -> None:
        """One more is done; `known` ones came from an earlier run and cost no time."""
        self._done += 1
        self._new += not known
        now, last = time.monotonic(), self._done == self.total
        if not (self._live or last or now - self._shown >= self.every):
            return
        self._shown = now
        line = f"{self.what} {self._done}/{self.total} {note}{self._left(now)}"
        if self._live:
            print(f"\r\033[K{line[:110]}", end="\n" if last else "", file=self._file, flush=True)
        else:
            print(line, file=self._file, flush=True)

    def _left(self, now: float) -> str:
        remaining = self.total - self._done
        if not self._new or not remaining:
            return f", {clock(now - self._begun)} taken" if not remaining else ""
        return f", {clock((now - self._begun) / self._new * remaining)} left"


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
