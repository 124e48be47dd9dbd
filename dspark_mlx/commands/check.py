"""`dspark-mlx check`: is the speculative output the target's own? Exit code 0 or 1."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dspark_mlx.command import Parser
from dspark_mlx.errors import OptionError
from dspark_mlx.measure.arms import Arm, every_arm, split_list
from dspark_mlx.measure.checking import check_greedy, check_sampled, greedy_summary
from dspark_mlx.measure.datasets import SEED
from dspark_mlx.measure.identity import machine
from dspark_mlx.measure.models import Models
from dspark_mlx.measure.prepare import Task, prepare
from dspark_mlx.measure.progress import Progress
from dspark_mlx.measure.report.check_text import greedy_text, sampled_text
from dspark_mlx.measure.store import Store, write_text
from dspark_mlx.sampling import Sampling

from .measuring import (
    add_models_arguments,
    add_prompt_arguments,
    block_sizes,
    chosen_models,
    chosen_sets,
    notify,
    results_folder,
)

RECORDS = "answers.jsonl"
LIMIT = 8  # prompts per set
SAMPLES = 16  # per prompt


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = Parser(
        prog="dspark-mlx check",
        description="Compare speculative with plain decoding, token for token; exit code 1 when "
        "a difference is not rounding. With a temperature: test the law of short samples.",
    )
    p.add_argument("-o", "--out", type=Path, help="folder for results; a run there is resumed")
    p.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_prompt_arguments(p, LIMIT)
    add_models_arguments(p)
    group = p.add_argument_group("what is checked")
    group.add_argument("--cutoffs", default="full", help="with commas (default full)")
    group.add_argument("--block-sizes", help="with commas (default: the drafter's)")
    group.add_argument(
        "--row-exact", action="store_true",
        help="verify one row at a time: what still differs is not rounding",
    )  # fmt: skip
    group.add_argument("--max-tokens", type=int, help="per prompt (128; sampled: 9)")
    group.add_argument("--temperature", "--temp", type=float, default=0.0, help="0: greedy")
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--top-k", type=int, default=0)
    group.add_argument("--min-p", type=float, default=0.0)
    group.add_argument("--samples", type=int, help="per prompt, with a temperature (default 16)")
    group.add_argument("--seed", type=int, default=SEED)
    return p


def main(argv: list[str]) -> int:
    """Run the command; 0: the contract holds, 1: it does not."""
    args = parser().parse_args(argv)
    sampling = Sampling(args.temperature, args.top_p, args.top_k, args.min_p)
    _check_together(args, sampling)
    folder = results_folder(args.out, RECORDS) if args.out else None
    sets = chosen_sets(args, LIMIT, args.seed)
    models = chosen_models(args)
    tasks = prepare(models.plain, sets, raw=args.raw, skip_long=args.skip_long, notify=notify)
    arms = every_arm(models.drafters, split_list(args.cutoffs, "--cutoffs"), block_sizes(args))
    with Store(folder / RECORDS if folder else None) as store:
        run = _greedy if sampling.greedy else _sampled
        found, text = run(args, models, arms, tasks, sampling, store)
    report = {
        "schema": 1,
        "command": "check",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "target": models.to_dict(),
        "drafters": [{"name": d.name, "sha256": d.sha256} for d in models.drafters],
        "sets": [{"name": s.name, "sha256": s.sha256, "source": s.source} for s in sets],
        **found,
    }
    if folder is not None:
        write_text(folder / "check.json", json.dumps(report, indent=1) + "\n")
    print(json.dumps(report) if args.json else text)
    return 0 if found["holds"] else 1


def _check_together(args: argparse.Namespace, sampling: Sampling) -> None:
    if args.max_tokens is not None and args.max_tokens < 2:
        raise OptionError(f"--max-tokens must be 2 or more, not {args.max_tokens}")
    if args.row_exact and not sampling.greedy:
        raise OptionError("--row-exact is for greedy decoding; leave out --temperature")
    if args.samples is not None and sampling.greedy:
        raise OptionError("--samples is for sampling; give a --temperature too")
    args.samples = SAMPLES if args.samples is None else args.samples
    if args.samples < 1:
        raise OptionError(f"--samples must be 1 or more, not {args.samples}")


def _greedy(
    args: argparse.Namespace,
    models: Models,
    arms: list[Arm],
    tasks: list[Task],
    sampling: Sampling,
    store: Store,
) -> tuple[dict[str, Any], str]:
    max_tokens = args.max_tokens or 128
    progress = Progress(len(arms) * len(tasks), "check")
    records = check_greedy(models, arms, tasks, max_tokens, store, args.row_exact, progress.step)
    rows = greedy_summary(records, arms)
    settings = {"max_tokens": max_tokens, "temperature": 0.0, "row_exact": args.row_exact}
    differences = [r for r in records if r["difference"]]
    found = {
        "mode": "greedy",
        "settings": settings,
        "holds": all(row["faults"] == 0 for row in rows),
        "arms": rows,
        "differences": differences,
    }
    return found, greedy_text(models.to_dict(), found)


def _sampled(
    args: argparse.Namespace,
    models: Models,
    arms: list[Arm],
    tasks: list[Task],
    sampling: Sampling,
    store: Store,
) -> tuple[dict[str, Any], str]:
    tokens = args.max_tokens or 9
    progress = Progress(len(arms) * len(tasks), "check")
    rows = check_sampled(
        models, arms, tasks, sampling, tokens, args.samples, args.seed, store, progress.step
    )
    settings = {
        "max_tokens": tokens, "samples": args.samples, "seed": args.seed, **vars(sampling),
    }  # fmt: skip
    if few := next((row for row in rows if not row["enough"]), None):
        raise OptionError(
            f"only {few['numbers']} tokens were drawn after first ones, too few to test; give "
            "more prompts, --samples or --max-tokens"
        )
    found = {
        "mode": "sampled",
        "settings": settings,
        "holds": all(row["passes"] for row in rows),
        "arms": rows,
    }
    return found, sampled_text(models.to_dict(), found)
