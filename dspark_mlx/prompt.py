"""From what a caller gives (a string, token ids, chat messages) to the prompt's token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from .errors import OptionError
from .pair import Pair

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


def prompt_ids(
    pair: Pair,
    prompt: Prompt | None = None,
    messages: Messages | None = None,
    thinking: bool | None = None,
) -> list[int]:
    """Token ids of exactly one of `prompt` (no chat template) and `messages` (with it).

    `thinking` switches the template's thinking section; None is the pair's default. Raises
    OptionError for bad input, naming it.
    """
    if (prompt is None) == (messages is None):
        raise OptionError("give either a prompt or messages, and not both")
    ids: Any = prompt
    if messages is not None:
        ids = _from_messages(pair, messages, thinking)
    elif isinstance(prompt, str):
        ids = _from_text(pair.tokenizer, prompt)
    return _checked(ids, pair.target.vocab_size)


def _from_text(tokenizer: Any, text: str) -> list[int]:
    # as mlx-lm: a text that brings its own beginning-of-sequence marker gets no second one
    bos = tokenizer.bos_token
    special = bos is None or not text.startswith(bos)
    return list(tokenizer.encode(text, add_special_tokens=special))


def _from_messages(pair: Pair, messages: Messages, thinking: bool | None) -> list[int]:
    if not messages:
        raise OptionError("messages is empty; give at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise OptionError(f"message {number} needs a role and a content: {message!r}")
    tokenizer = pair.tokenizer
    if not tokenizer.has_chat_template:
        raise OptionError(f"{pair.target.name} has no chat template; give a plain prompt (--raw)")
    thinking = pair.thinking if thinking is None else thinking
    switch = {} if thinking is None else {"enable_thinking": thinking}
    try:
        rendered = tokenizer.apply_chat_template(
            [dict(m) for m in messages], tokenize=False, add_generation_prompt=True, **switch
        )
    except (TemplateError, TypeError, ValueError) as error:  # as templates refuse a role
        raise OptionError(
            f"the chat template of {pair.target.name} refuses these messages: {error}"
        ) from error
    return list(tokenizer.encode(rendered, add_special_tokens=False))


def _checked(prompt: Any, vocabulary: int) -> list[int]:
    # numpy and mlx arrays are welcome; tolist gives plain integers
    ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(ids, Sequence):
        raise OptionError(f"the prompt must be a string or token ids, not {type(ids).__name__}")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise OptionError(
                f"prompt has {token!r} where a token id from 0 to {vocabulary - 1} is expected"
            )
    return list(ids)
