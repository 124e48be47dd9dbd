"""Token ids to text, piece by piece, so that the pieces join to the decode of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNFINISHED = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


class TextStream:
    """Incremental decoding with a short overlap, for any tokenizer with `decode(ids)`.

    A piece is held back while it ends inside a character; `flush` gives out the rest.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._decode = tokenizer.decode
        self._ids: list[int] = []
        self._start = 0  # first id of the overlap, for tokenizers that decode by neighbours
        self._done = 0  # ids whose text is out
        self._sent = ""  # text of ids[start:done]

    def add(self, token: int) -> str:
        """Text that this token completed, often a word piece, sometimes empty."""
        self._ids.append(token)
        window = self._decode(self._ids[self._start :])
        if window.endswith(UNFINISHED) or self._sent.startswith(window):
            return ""
        return self._send(window)

    def flush(self) -> str:
        """Text still held back at the end of a generation."""
        return self._send(self._decode(self._ids[self._start :])) if self._ids else ""

    def _send(self, window: str) -> str:
        # a tokenizer that tidies up spaces may have changed its mind about text already sent
        piece = window[shared_length(self._sent, window) :]
        self._start, self._done = self._done, len(self._ids)
        self._sent = self._decode(self._ids[self._start :])
        return piece


class StopStrings:
    """Text up to the first of some strings, wherever tokens and rounds cut it.

    The string that is complete first wins, and of those the longest, so that the result does
    not depend on how the text arrives. What may be the beginning of a stop string is held back.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.found: str | None = None

    def add(self, piece: str) -> str:
        """Text that is certainly in front of every stop string; nothing once one is found."""
        if self.found is not None or not self._strings:
            return "" if self._strings else piece
        text = self._held + piece
        places = [(at + len(s), at, s) for s in self._strings if (at := text.find(s)) >= 0]
        if places:
            _, begin, self.found = min(places)
            self._held = ""
            return text[:begin]
        held = max(_overlap(text, string) for string in self._strings)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that `string` begins with, short of all of it."""
    lengths = range(min(len(text), len(string) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(string[:n])), 0)


def shared_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the common beginning."""
    unlike = (k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(unlike, min(len(a), len(b)))
