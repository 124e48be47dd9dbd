"""Token ids to text, piece by piece, so that the pieces join to the decode of the whole."""

from __future__ import annotations

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
        piece = window[_shared(self._sent, window) :]
        self._start, self._done = self._done, len(self._ids)
        self._sent = self._decode(self._ids[self._start :])
        return piece


def _shared(a: str, b: str) -> int:
    """Length of the common beginning."""
    unlike = (k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(unlike, min(len(a), len(b)))
