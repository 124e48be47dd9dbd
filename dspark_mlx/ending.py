"""Where an answer ends: stop tokens, stop strings, and the limit; and its text up to there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from .text import StopStrings, TextStream


class Taken(NamedTuple):
    """The tokens that belong to the answer, and the text that each of them released."""

    tokens: list[int]
    texts: tuple[str, ...]


class Answer:
    """Takes tokens until one of them ends the answer.

    A stop token is the last token and has no text. The token that completes a stop string is
    the last token too: the record keeps it, the text ends in front of the string.
    """

    def __init__(
        self, tokenizer: Any, stop_ids: Collection[int], strings: Sequence[str], limit: float
    ) -> None:
        self.reason: str | None = None if limit > 0 else "length"
        self.length = 0
        self._limit = limit
        self._stop_ids = stop_ids
        self._text = TextStream(tokenizer)
        self._strings = StopStrings(strings)

    @property
    def remaining(self) -> float:
        """Tokens until the limit."""
        return self._limit - self.length

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._strings.found

    def take(self, tokens: Sequence[int]) -> Taken:
        """The leading tokens that still belong to the answer; sets `reason` at its end."""
        texts = []
        for token in tokens:
            if self.reason is not None:
                break
            texts.append(self._take(token))
        return Taken(list(tokens[: len(texts)]), tuple(texts))

    def _take(self, token: int) -> str:
        self.length += 1
        stops = token in self._stop_ids
        text = "" if stops else self._strings.add(self._text.add(token))
        if stops or self._strings.found is not None:
            self.reason = "stop"
        elif self.length >= self._limit:
            self.reason = "length"
        if self.reason is not None and self._strings.found is None:
            text += self._strings.add(self._text.flush())
            if self._strings.found is not None:  # it was in the very last characters
                self.reason = "stop"
            text += self._strings.flush()
        return text
