"""Control tokens that a user typed out: plain text, so that no message can end its own turn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .errors import OptionError

# private-use characters around a control token's name, from before the template to after it
OPEN, CLOSE = "\uf1d0", "\uf1d1"


class Marked:
    """Marks the names of control tokens in messages, and encodes what a template made of them.

    A text without such names is encoded as one, as ever.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        tokens = getattr(tokenizer, "added_tokens_decoder", {})
        self._ids = {token.content: i for i, token in tokens.items() if token.special}
        longest = sorted(self._ids, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, longest)) or r"(?!)")

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message with marks; private characters that it brings along are dropped."""
        content = re.sub(f"[{OPEN}{CLOSE}]", "", message["content"])
        return {**message, "content": self._names.sub(f"{OPEN}\\g<0>{CLOSE}", content)}

    def encode(self, rendered: str) -> list[int]:
        """Token ids; marked names as text, everything else as it is."""
        # odd pieces are names; a template may have separated the marks of one, so lone ones go
        pieces = re.split(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}", rendered)
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            text = re.sub(f"[{OPEN}{CLOSE}]", "", piece)
            if text:
                ids += self._piece(text, first=not number, literal=bool(number % 2))
        return ids

    def _piece(self, text: str, first: bool, literal: bool) -> list[int]:
        if first:
            return self._encode(text)
        # behind a newline, since some tokenizers put a space before the first word of all
        newline = self._encode("\n")
        ids = self._encode("\n" + text, literal)
        ids = ids[len(newline) :] if ids[: len(newline)] == newline else self._encode(text, literal)
        if literal and self._ids.get(text) in ids:
            raise OptionError(f"this tokenizer cannot write {text!r} as plain text; leave it out")
        return ids

    def _encode(self, text: str, literal: bool = False) -> list[int]:
        how = {"split_special_tokens": True} if literal else {}
        return list(self._tokenizer.encode(text, add_special_tokens=False, **how))
