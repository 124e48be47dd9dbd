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
        "--cutoff", default="auto", help=f"how much to verify: {KNOWN} (default auto)"
    )
    group.add_argument("--block-size", type=int, help="slots per block (default: the drafter's)")
    group.add_argument(
        "--profile", action="store_true", help="time draft and verify apart (costs some speed)"
    )


def model_options(args: argparse.Namespace) -> dict[str, object]:
    """Keyword arguments of `load` from parsed arguments, the target excluded."""
    bits = int(args.quantize) if args.quantize in ("4", "8") else args.quantize
    drafter = False if args.plain else args.drafter
    return {"drafter": drafter, "quantize": bits, "dtype": args.dtype}


def generation_options(args: argparse.Namespace) -> dict[str, object]:
    """Keyword arguments of `generate` from parsed arguments."""
    names = (
        "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "cutoff", "block_size",
        "profile",
    )  # fmt: skip
    return {name: getattr(args, name) for name in names}
