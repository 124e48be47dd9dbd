"""`dspark-mlx generate`: one prompt, streamed, and a summary of what speculation did."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dspark_mlx.api import stream
from dspark_mlx.command import (
    Parser,
    add_generation_arguments,
    add_model_arguments,
    generation_options,
    model_options,
)
from dspark_mlx.errors import OptionError
from dspark_mlx.events import Finished, Prefilled, Round
from dspark_mlx.loading import load
from dspark_mlx.stats import Stats
from dspark_mlx.summary import printable, summary


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = Parser(prog="dspark-mlx generate", description="Answer one prompt, streaming the text.")
    source = p.add_mutually_exclusive_group()
    source.add_argument("-p", "--prompt", help="the prompt; without it, stdin is read")
    source.add_argument("-f", "--file", help="read the prompt from a file")
    p.add_argument("--system", help="system message")
    p.add_argument("--raw", action="store_true", help="do not apply the chat template")
    p.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    p.add_argument("--quiet", action="store_true", help="no summary")
    p.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="switch the template's thinking section (default: off for the known models)",
    )
    p.add_argument(
        "--control-tokens",
        action="store_true",
        help="let <|im_end|> and the like in the prompt act; without it they are plain text",
    )
    add_model_arguments(p)
    add_generation_arguments(p)
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    _check_together(args)
    text = _prompt(args)
    pair = load(args.model, **model_options(args), progress=_progress)  # type: ignore[arg-type]
    asked: dict[str, Any] = {"prompt": text} if args.raw else {"messages": _messages(args, text)}
    if not args.raw:
        asked |= {"thinking": args.thinking, "control_tokens": args.control_tokens}
    events = stream(pair, **asked, **generation_options(args))  # type: ignore[arg-type]
    answer = _Answer(show=not args.json)
    try:
        for event in events:
            answer.add(event)
    except KeyboardInterrupt:
        answer.reason = "interrupted"
    if args.json:
        print(json.dumps(answer.to_dict()))
    elif not args.quiet:
        print(summary(answer.stats, answer.reason), file=sys.stderr)
    return 130 if answer.reason == "interrupted" else 0


class _Answer:
    """Folds events into text, tokens and statistics, printing text as it comes."""

    def __init__(self, show: bool) -> None:
        self.stats = Stats()
        self.tokens: list[int] = []
        self.text = ""
        self.reason = "length"
        self._show = show

    def add(self, event: Any) -> None:
        self.stats.add(event)
        if isinstance(event, Prefilled):
            self._take((event.token,), event.text)
        elif isinstance(event, Round):
            self._take(event.tokens, event.text)
        elif isinstance(event, Finished):
            self.reason = event.reason
            if self._show and not self.text.endswith("\n"):
                print()

    def _take(self, tokens: tuple[int, ...], text: str) -> None:
        self.tokens += tokens
        self.text += text
        if self._show:
            print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.reason,
            "stats": self.stats.to_dict(),
        }


def _check_together(args: argparse.Namespace) -> None:
    """Options that would be ignored beside each other are refused."""
    if args.raw and args.system:
        raise OptionError("--system needs the chat template; leave out --raw")
    if args.raw and args.thinking is not None:
        raise OptionError("--thinking needs the chat template; leave out --raw")
    if args.raw and args.control_tokens:
        raise OptionError("a --raw prompt is taken as it is; leave out --control-tokens")
    if args.plain and args.drafter:
        raise OptionError("--plain runs without a drafter; leave out --drafter")


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        return _checked(args.prompt, "--prompt")
    if args.file is not None and args.file != "-":
        try:
            return _decoded(Path(args.file).read_bytes(), args.file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OptionError(f"cannot read the prompt from {args.file}: {reason}") from error
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError("no prompt: give --prompt TEXT, --file FILE, or pipe one in")
    return _decoded(sys.stdin.buffer.read(), "stdin")


def _decoded(raw: bytes, source: str) -> str:
    try:
        return _checked(raw.decode("utf-8-sig").replace("\r\n", "\n"), source)
    except UnicodeDecodeError as error:
        raise OptionError(
            f"the prompt from {source} is not UTF-8 text (byte {error.start}); convert it first"
        ) from error


def _checked(text: str, source: str) -> str:
    if not text.strip():
        raise OptionError(f"the prompt from {source} is empty")
    if any("\ud800" <= c <= "\udfff" for c in text):  # what bytes outside UTF-8 become in argv
        raise OptionError(f"the prompt from {source} is not UTF-8 text; convert it first")
    return text


def _messages(args: argparse.Namespace, text: str) -> list[dict[str, str]]:
    system = [{"role": "system", "content": args.system}] if args.system else []
    return [*system, {"role": "user", "content": text}]


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
