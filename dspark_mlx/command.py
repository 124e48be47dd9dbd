"""What every command shares: one-line errors, and the options of a generation."""

from __future__ import annotations

import argparse
from typing import NoReturn

from .cutoff import KNOWN


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `loading.load` takes."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model", default="smollm2-135m", help="name, hub id or folder (default smollm2-135m)"
    )
    group.add_argument("--drafter", help="name, hub id or folder (default: the model's own)")
    group.add_argument("--plain", action="store_true", help="run the target alone")
    group.add_argument(
        "--quantize", choices=("4", "8", "keep"), help="drafter bits, or keep what is stored"
    )
    group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    group.add_argument("--kv-bits", type=int, help="quantize the target's KV caches")
    group.add_argument("--kv-group-size", type=int, help="values per scale (default 64)")
    group.add_argument(
        "--quantized-kv-start", type=int, help="positions before quantizing begins (default 0)"
    )


def add_generation_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `options.Options`."""
    group = parser.add_argument_group("generation")
    group.add_argument("--max-tokens", type=int, default=256, help="-1: no limit (default 256)")
    group.add_argument(
        "--temperature", "--temp", type=float, default=0.0, help="0: greedy (default)"
    )
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--top-k", type=int, default=0)
    group.add_argument("--min-p", type=float, default=0.0)
    group.add_argument("--seed", type=int, help="for a run that can be repeated")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end in front of this text; repeatable"
    )
    group.add_argument(
        "--logit-bias",
        action="append",
        type=_bias,
        metavar="TOKEN:VALUE",
        help="add to a token's logit, by its id; repeatable",
    )
    for name in ("repetition", "presence", "frequency"):
        group.add_argument(f"--{name}-penalty", type=float, help="as in mlx-lm (default: none)")
        group.add_argument(
            f"--{name}-context-size",
            type=int,
            default=20,
            help="tokens that the penalty looks back on (default 20)",
        )
    group.add_argument(
        "--cutoff", default="auto", help=f"how much to verify: {KNOWN} (default auto)"
    )
    group.add_argument("--block-size", type=int, help="slots per block (default: the drafter's)")
    group.add_argument(
        "--drafter-context",
        type=int,
        help="positions that the drafter looks back on; -1: all (default 4096)",
    )
    group.add_argument(
        "--profile", action="store_true", help="time draft and verify apart (costs some speed)"
    )


def model_options(args: argparse.Namespace) -> dict[str, object]:
    """Keyword arguments of `load` from parsed arguments, the target excluded."""
    bits = int(args.quantize) if args.quantize in ("4", "8") else args.quantize
    drafter = False if args.plain else args.drafter
    names = ("dtype", "kv_bits", "kv_group_size", "quantized_kv_start")
    return {"drafter": drafter, "quantize": bits, **{n: getattr(args, n) for n in names}}


def generation_options(args: argparse.Namespace) -> dict[str, object]:
    """Keyword arguments of `generate` from parsed arguments."""
    names = (
        "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias",
        "repetition_penalty", "repetition_context_size", "presence_penalty",
        "presence_context_size", "frequency_penalty", "frequency_context_size", "cutoff",
        "block_size", "drafter_context", "profile",
    )  # fmt: skip
    options = {name: getattr(args, name) for name in names}
    return options | {"logit_bias": dict(args.logit_bias) if args.logit_bias else None}


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition(":")
    try:
        return int(token), float(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected TOKEN:VALUE, not {text!r}") from error
