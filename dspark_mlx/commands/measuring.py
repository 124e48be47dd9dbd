"""What `eval`, `check` and `bench` share: which prompts, which models, where results go."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dspark_mlx.errors import OptionError
from dspark_mlx.measure.arms import split_list
from dspark_mlx.measure.datasets import SEED, DataSet, built_in, from_file
from dspark_mlx.measure.hub_sets import HUB_SETS, named
from dspark_mlx.measure.models import Models, open_models
from dspark_mlx.prompts import BUILT_IN
from dspark_mlx.registry import DEFAULT

BUILT_IN_NAME = "built-in"


def add_prompt_arguments(parser: argparse.ArgumentParser, limit: int) -> None:
    """Where prompts come from, and how many are used; `args.limit` is None where not given."""
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--sets",
        help=f"names with commas: built-in (the default), {', '.join(BUILT_IN)}, "
        f"{', '.join(HUB_SETS)}",
    )
    group.add_argument(
        "--data", type=Path, help="folder of DeepSpec's NAME.jsonl files, in place of the hub"
    )
    group.add_argument(
        "--file", type=Path, action="append", default=[],
        help="a jsonl file (turns, prompt, ...) or a text file of one prompt per line",
    )  # fmt: skip
    group.add_argument("--limit", type=int, help=f"prompts per set, 0: all (default {limit})")
    group.add_argument(
        "--first", action="store_true", help="take the first prompts, not a shuffled pick"
    )
    group.add_argument("--raw", action="store_true", help="do not apply the chat template")
    group.add_argument(
        "--skip-long", action="store_true", help="leave out prompts that fill the context"
    )


def add_models_arguments(parser: argparse.ArgumentParser) -> None:
    """One target, any number of drafters and precisions."""
    group = parser.add_argument_group("models")
    group.add_argument("--model", default=DEFAULT, help=f"name, hub id or folder ({DEFAULT})")
    group.add_argument(
        "--drafter", action="append", default=[],
        help="name, hub id or folder; give it again to compare (default: the model's own)",
    )  # fmt: skip
    group.add_argument("--drafter-bits", help="4, 8 or keep; with commas to compare")
    group.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))


def chosen_sets(args: argparse.Namespace, limit: int, seed: int = SEED) -> list[DataSet]:
    """The data sets that the arguments name, cut to --limit (or `limit`)."""
    limit = limit if args.limit is None else args.limit
    if limit < 0:
        raise OptionError(f"--limit must be 0 (all) or more, not {limit}")
    if args.data is not None and not args.data.is_dir():
        raise OptionError(f"--data {args.data} is not a folder")
    sets = [from_file(path) for path in args.file]
    for name in _names(args):
        if name == BUILT_IN_NAME:
            sets += built_in()
        elif name in BUILT_IN and args.data is None:
            sets += built_in([name])
        else:
            sets.append(named(name, args.data))
    labels = [s.name for s in sets]
    if twice := sorted({name for name in labels if labels.count(name) > 1}):
        raise OptionError(f"two data sets are called {', '.join(twice)}; rename a file")
    return [s.picked(limit or None, seed, args.first) for s in sets]


def _names(args: argparse.Namespace) -> list[str]:
    if args.sets is not None:
        return split_list(args.sets, "--sets")
    if args.data is not None:
        names = sorted(path.stem for path in args.data.glob("*.jsonl"))
        if not names:
            raise OptionError(f"{args.data} has no jsonl file; DeepSpec's sets are NAME.jsonl")
        return names
    return [] if args.file else [BUILT_IN_NAME]


def chosen_models(args: argparse.Namespace) -> Models:
    """The target and drafters that the arguments name, loaded."""
    bits: list[int | str | None] = [None]
    if args.drafter_bits is not None:
        bits = [
            int(b) if b in ("4", "8") else b
            for b in split_list(args.drafter_bits, "--drafter-bits")
        ]
    return open_models(args.model, args.drafter, bits, args.dtype, notify)


def block_sizes(args: argparse.Namespace) -> list[int | None]:
    """The values of --block-sizes; None is the drafter's own."""
    return (
        [None] if args.block_sizes is None else split_list(args.block_sizes, "--block-sizes", int)
    )


def results_folder(path: Path, marker: str) -> Path:
    """A folder that is new, empty, or holds `marker`: an earlier run of the same command."""
    if path.exists() and not path.is_dir():
        raise OptionError(f"{path} is a file; name a folder for the results")
    if path.is_dir() and any(path.iterdir()) and not (path / marker).exists():
        raise OptionError(f"{path} is not empty and holds no {marker}; choose another folder")
    return path


def notify(line: str) -> None:
    """A line on stderr."""
    print(line, file=sys.stderr, flush=True)
