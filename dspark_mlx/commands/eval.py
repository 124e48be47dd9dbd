"""`dspark-mlx eval`: how well drafters are accepted on data sets, and how far they know it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dspark_mlx.calibration import Scale
from dspark_mlx.command import Parser
from dspark_mlx.errors import OptionError
from dspark_mlx.measure.arms import Arm, every_arm, split_list
from dspark_mlx.measure.datasets import SEED
from dspark_mlx.measure.evaluate import EvalSettings, evaluate
from dspark_mlx.measure.head_cost import head_cost
from dspark_mlx.measure.hub_sets import HUB_SETS
from dspark_mlx.measure.models import Models
from dspark_mlx.measure.prepare import Task, prepare
from dspark_mlx.measure.progress import Progress
from dspark_mlx.measure.report import build
from dspark_mlx.measure.report.table import eval_text
from dspark_mlx.measure.results import Scales
from dspark_mlx.measure.store import Store

from .measuring import (
    add_models_arguments,
    add_prompt_arguments,
    block_sizes,
    chosen_models,
    chosen_sets,
    notify,
    results_folder,
)

RECORDS = "rounds.jsonl"
LIMIT = 20  # prompts per set
DEFAULTS = {"max_tokens": 256, "temperature": 1.0, "limit": LIMIT}
PAPER = {"max_tokens": 2048, "temperature": 1.0, "limit": 0}


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = Parser(
        prog="dspark-mlx eval",
        description="Measure acceptance and confidence on data sets (docs/measuring.md).",
    )
    p.add_argument("-o", "--out", type=Path, help="folder for the report; a run there is resumed")
    p.add_argument("--json", action="store_true", help="print the report as JSON, nothing else")
    add_prompt_arguments(p, LIMIT)
    add_models_arguments(p)
    arms = p.add_argument_group("arms (every drafter with every cutoff and block size)")
    arms.add_argument("--cutoffs", default="full", help="with commas (default full)")
    arms.add_argument("--block-sizes", help="with commas (default: the drafter's)")
    arms.add_argument(
        "--head-off", action="store_true", help="also with the sequential head switched off"
    )
    arms.add_argument(
        "--calibration",
        type=Path,
        help="JSON with temperatures by draft position (default: what `calibrate` kept)",
    )
    group = p.add_argument_group("generation")
    group.add_argument("--max-tokens", type=int, help="per prompt (default 256)")
    group.add_argument("--temperature", "--temp", type=float, help="0: greedy (default 1)")
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--top-k", type=int, default=0)
    group.add_argument("--min-p", type=float, default=0.0)
    group.add_argument("--seed", type=int, default=SEED, help=f"(default {SEED}, as DeepSpec)")
    group.add_argument(
        "--paper", action="store_true",
        help="the paper's settings: 2048 tokens, temperature 1, its number of prompts per set",
    )  # fmt: skip
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    settings = _settings(args)
    folder = results_folder(args.out, RECORDS) if args.out else None
    sets = chosen_sets(args, LIMIT, settings.seed)
    if args.paper:
        quota = {name: entry.quota for name, entry in HUB_SETS.items()}
        sets = [s.picked(quota.get(s.name), settings.seed) for s in sets]
    models = chosen_models(args)
    tasks = prepare(models.plain, sets, raw=args.raw, skip_long=args.skip_long, notify=notify)
    arms = every_arm(
        models.drafters, split_list(args.cutoffs, "--cutoffs"), block_sizes(args), args.head_off
    )
    scales = _scales(args.calibration, arms, settings.temperature)
    with Store(folder / RECORDS if folder else None) as store:
        records, costs = _run(models, arms, tasks, settings, store, args.head_off)
    shown = vars(settings) | {"raw": args.raw}
    report = build.build(models, sets, arms, shown, records, scales, costs)
    print(json.dumps(report) if args.json else eval_text(report))
    if folder is not None:
        paths = build.write(report, folder)
        notify(f"wrote {paths[0]} and {', '.join(path.name for path in paths[1:])}")
    return 0


def _run(
    models: Models,
    arms: list[Arm],
    tasks: list[Task],
    settings: EvalSettings,
    store: Store,
    head_off: bool,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    progress = Progress(len(arms) * len(tasks), "eval")
    records = evaluate(arms, tasks, settings, store, models.identity, progress.step)
    costs = [head_cost(drafter, tasks) for drafter in models.drafters] if head_off else []
    return records, costs


def _settings(args: argparse.Namespace) -> EvalSettings:
    for name, default in (PAPER if args.paper else DEFAULTS).items():
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif args.paper:
            raise OptionError(f"--paper sets --{name.replace('_', '-')}; leave one of them out")
    if args.max_tokens < 1:
        raise OptionError(f"--max-tokens must be 1 or more, not {args.max_tokens}")
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed")
    return EvalSettings(**{name: getattr(args, name) for name in names})


def _scales(path: Path | None, arms: list[Arm], temperature: float) -> Scales:
    """Calibrations by drafter: the file's for all, or what `calibrate` has kept for each."""
    drafters = {arm.drafter.name: arm.drafter.pair for arm in arms}
    if path is not None:
        return dict.fromkeys(drafters, _from_file(path, max(arm.block for arm in arms)))
    kept = {name: pair.tuning.calibration(temperature) for name, pair in drafters.items()}
    return {name: fit.scales for name, fit in kept.items() if fit and fit.scales}


def _from_file(path: Path, need: int) -> list[Scale]:
    """Temperatures by draft position, or scales with offsets too."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            found = found["scales"] if "scales" in found else found["temperatures"]
        scales = [Scale(**one) if isinstance(one, dict) else Scale(float(one)) for one in found]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise OptionError(f"cannot read the calibration {path}: {error}") from error
    if len(scales) < need:
        raise OptionError(f"{path} has {len(scales)} temperatures, {need} drafts need one each")
    return scales
