"""`dspark-mlx bench`: what speculation gains on this machine, against mlx-lm's plain decoding."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dspark_mlx.command import Parser
from dspark_mlx.errors import OptionError, PairError
from dspark_mlx.fingerprint import fingerprint
from dspark_mlx.loading import load
from dspark_mlx.measure import speed
from dspark_mlx.measure.arms import every_arm, split_list
from dspark_mlx.measure.benchmark import (
    Case,
    DraftModelRunner,
    PlainRunner,
    Runner,
    SpeculativeRunner,
    measure,
    round_split,
)
from dspark_mlx.measure.contexts import lengthened
from dspark_mlx.measure.datasets import SEED, DataSet
from dspark_mlx.measure.identity import machine
from dspark_mlx.measure.models import Models
from dspark_mlx.measure.prepare import Task, prepare
from dspark_mlx.measure.progress import Progress
from dspark_mlx.measure.report.bench_text import bench_text
from dspark_mlx.measure.store import write_text
from dspark_mlx.sampling import Sampling

from .measuring import (
    add_models_arguments,
    add_prompt_arguments,
    block_sizes,
    chosen_models,
    chosen_sets,
    notify,
)

OWN = "prompts as they are"
LIMIT = 1  # prompts per set


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = Parser(
        prog="dspark-mlx bench",
        description="Time speculative against plain decoding, interleaved and warm. A ratio is "
        "shown only for equal work.",
    )
    p.add_argument("-o", "--out", type=Path, help="write the report to this JSON file")
    p.add_argument("--json", action="store_true", help="print the report as JSON, nothing else")
    p.add_argument("--compare", type=Path, help="an earlier report: show what changed")
    add_prompt_arguments(p, LIMIT)
    add_models_arguments(p)
    group = p.add_argument_group("what is timed (every combination)")
    group.add_argument("--cutoffs", default="auto,full,fixed:1,fixed:2", help="with commas")
    group.add_argument("--block-sizes", help="with commas (default: the drafter's)")
    group.add_argument("--contexts", help="prompt lengths in tokens, with commas")
    group.add_argument("--temperatures", default="0", help="with commas (default 0: greedy)")
    group.add_argument("--draft-model", help="also mlx-lm's own speculation with this model")
    group.add_argument("--draft-tokens", type=int, default=3, help="of that model (default 3)")
    group.add_argument("--max-tokens", type=int, default=64, help="per run (default 64)")
    group.add_argument("--repeats", type=int, default=3, help="of everything (default 3)")
    group.add_argument("--seed", type=int, default=SEED)
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    return run(parser().parse_args(argv))


def run(
    args: argparse.Namespace, more: Callable[[Models], Sequence[Runner]] = lambda models: ()
) -> int:
    """Run with parsed arguments; `more` gives further ways to generate, timed like the rest."""
    _check(args)
    before = _earlier(args.compare) if args.compare else None
    sets = chosen_sets(args, LIMIT, args.seed)
    models = chosen_models(args)
    tasks = prepare(models.plain, sets, raw=args.raw, skip_long=args.skip_long, notify=notify)
    cases = _cases(args, models, tasks)
    arms = every_arm(models.drafters, split_list(args.cutoffs, "--cutoffs"), block_sizes(args))
    ours = [SpeculativeRunner(arm) for arm in arms]
    settings: dict[str, Any] = {}
    runners: list[Runner] = [PlainRunner(models.plain), *ours]
    if args.draft_model:
        runners.append(draft := _draft_model(args, models))
        settings["draft_model"] = draft.sha256
    runners += more(models)
    progress = Progress(len(runners) * len(tasks) * len(cases) * args.repeats, "bench")
    timings = measure(runners, cases, args.max_tokens, args.repeats, args.seed, progress.step)
    splits = {r.name: round_split(r, cases[0], args.max_tokens, args.seed) for r in ours}
    report = _report(args, models, sets, tasks)
    report["settings"] |= settings
    report |= {
        "rows": speed.rows(timings, cases, runners[0].name),
        "round_split": {name: split for name, split in splits.items() if split},
        "runs": [_run(t.case, t) for t in timings],
    }
    if before is not None:
        report["compared"] = {
            "with": str(args.compare),
            "rows": speed.compare(report, before),
            "differences": speed.differences(report, before),
        }
    if args.out:
        write_text(args.out, json.dumps(report, indent=1) + "\n")
    print(json.dumps(report) if args.json else bench_text(report))
    return 0


def _check(args: argparse.Namespace) -> None:
    for name, low in (("max_tokens", 2), ("repeats", 1), ("draft_tokens", 1)):
        if getattr(args, name) < low:
            shown = name.replace("_", "-")
            raise OptionError(f"--{shown} must be {low} or more, not {getattr(args, name)}")


def _earlier(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["command"] != "bench":
            raise ValueError(f"it is a report of {found['command']}")
        _ = [found[key] for key in ("rows", "machine", "target", "settings", "drafters", "sets")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{path} is not a report of `bench --out`: {error}") from error
    return found


def _cases(args: argparse.Namespace, models: Models, tasks: list[Task]) -> list[Case]:
    temperatures = split_list(args.temperatures, "--temperatures", float)
    own = tuple((task.example.label, task.ids) for task in tasks)
    grid = [(OWN, own)]
    if args.contexts:
        lengths = split_list(args.contexts, "--contexts", int)
        grid = [
            (f"context {n}", lengthened(models.plain, tasks, n, args.max_tokens)) for n in lengths
        ]
    return [Case(name, Sampling(t), prompts) for name, prompts in grid for t in temperatures]


def _draft_model(args: argparse.Namespace, models: Models) -> DraftModelRunner:
    draft = load(args.draft_model, drafter=False, dtype=args.dtype, progress=notify)
    ours, theirs = models.plain.target.vocab_size, draft.target.vocab_size
    if ours != theirs:
        raise PairError(
            f"{args.draft_model} has a vocabulary of {theirs}, {models.name} one of {ours}; "
            "mlx-lm's speculation needs the same"
        )
    name = args.draft_model.rstrip("/").rsplit("/", 1)[-1]
    content = fingerprint(draft.target.model, draft.target.config)
    return DraftModelRunner(models.plain, draft.target.model, name, args.draft_tokens, content)


def _report(
    args: argparse.Namespace, models: Models, sets: list[DataSet], tasks: list[Task]
) -> dict[str, Any]:
    names = ("max_tokens", "repeats", "seed", "contexts", "temperatures", "draft_tokens", "raw")
    return {
        "schema": 1,
        "command": "bench",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "target": models.to_dict(),
        "drafters": [{"name": d.name, "sha256": d.sha256} for d in models.drafters],
        "sets": [{"name": s.name, "sha256": s.sha256, "source": s.source} for s in sets],
        "settings": {name: getattr(args, name) for name in names} | {"prompts": len(tasks)},
    }


def _run(case: int, timing: Any) -> dict[str, Any]:
    outcome = vars(timing.outcome) | {"tokens": len(timing.outcome.tokens)}
    place = {"case": case, "arm": timing.arm, "prompt": timing.prompt, "repeat": timing.repeat}
    return place | outcome
