"""From what a caller gives (a string, token ids, chat messages) to the prompt's token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from .control import Marked
from .errors import OptionError
from .pair import Pair

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


def prompt_ids(
    pair: Pair,
    prompt: Prompt | None = None,
    messages: Messages | None = None,
    thinking: bool | None = None,
    control_tokens: bool = False,
) -> list[int]:
    """Token ids of exactly one of `prompt` (no chat template) and `messages` (with it).

    `thinking` switches the template's thinking section; None is the pair's default. Control
    tokens (`<|im_end|>` and the like) written out in a message are plain text, unless
    `control_tokens`; in assistant messages, which the model wrote, they always count. Raises
    OptionError for bad input, naming it.
    """
    if (prompt is None) == (messages is None):
        raise OptionError("give either a prompt or messages, and not both")
    ids: Any = prompt
    if messages is not None:
        ids = _from_messages(pair, messages, thinking, control_tokens)
    elif isinstance(prompt, str):
        ids = _from_text(pair.tokenizer, prompt)
    return _checked(ids, pair.target.vocab_size)


def _from_text(tokenizer: Any, text: str) -> list[int]:
    # as mlx-lm: a text that brings its own beginning-of-sequence marker gets no second one
    bos = tokenizer.bos_token
    special = bos is None or not text.startswith(bos)
    return list(tokenizer.encode(text, add_special_tokens=special))


def _from_messages(
    pair: Pair, messages: Messages, thinking: bool | None, control_tokens: bool
) -> list[int]:
    if not messages:
        raise OptionError("messages is empty; give at least one message")
    plain = [_plain(message, number) for number, message in enumerate(messages)]
    if not pair.tokenizer.has_chat_template:
        raise OptionError(f"{pair.target.name} has no chat template; give a plain prompt (--raw)")
    marked = Marked(pair.tokenizer)
    if not control_tokens:
        plain = [m if m["role"] == "assistant" else marked.message(m) for m in plain]
    _check_thinking(pair, plain, thinking)
    rendered = render(pair, plain, thinking)
    _check_system(pair, plain, thinking, rendered)
    return marked.encode(rendered)


def render(pair: Pair, messages: Messages, thinking: bool | None) -> str:
    """The template's text for these messages and the beginning of an answer."""
    thinking = pair.thinking if thinking is None else thinking
    switch = {} if thinking is None else {"enable_thinking": thinking}
    try:
        rendered: str = pair.tokenizer.apply_chat_template(
            [dict(m) for m in messages], tokenize=False, add_generation_prompt=True, **switch
        )
    except (TemplateError, TypeError, ValueError) as error:  # as templates refuse a role
        raise OptionError(
            f"the chat template of {pair.target.name} refuses these messages: {error}"
        ) from error
    return rendered


def _plain(message: Any, number: int) -> dict[str, Any]:
    """A message with its content as one string; text parts are joined."""
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
        raise OptionError(f"message {number} needs a role and a content: {message!r}")
    role, content = message["role"], message["content"]
    if not isinstance(role, str) or not role:
        raise OptionError(f"message {number} has the role {role!r}, expected a name")
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = [p.get("text") if isinstance(p, Mapping) else None for p in content]
        if not all(isinstance(text, str) for text in parts):
            raise OptionError(f"message {number} has parts that are not text; expected text only")
        content = "".join(str(text) for text in parts)
    if not isinstance(content, str) and not (content is None and role == "assistant"):
        raise OptionError(
            f"message {number} has a content of type {type(content).__name__}, expected text"
        )
    return {**message, "content": content}


def _check_thinking(pair: Pair, messages: Messages, thinking: bool | None) -> None:
    """Refuse a switch that the template does not have, where it would matter."""
    if thinking is None or thinking == bool(getattr(pair.tokenizer, "has_thinking", False)):
        return
    if render(pair, messages, True) == render(pair, messages, False):
        raise OptionError(
            f"the chat template of {pair.target.name} cannot switch thinking; leave out thinking"
        )


def _check_system(pair: Pair, messages: Messages, thinking: bool | None, rendered: str) -> None:
    """Refuse a system message that the template leaves out."""
    if not any(m["role"] == "system" and m["content"] for m in messages):
        return
    without = [{**m, "content": ""} if m["role"] == "system" else m for m in messages]
    if render(pair, without, thinking) == rendered:
        raise OptionError(
            f"the chat template of {pair.target.name} leaves system messages out; "
            "say it in the first user message"
        )


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
