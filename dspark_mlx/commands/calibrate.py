"""`dspark-mlx calibrate`: make a pair's confidences mean what they say, and measure its costs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dspark_mlx.api import stream
from dspark_mlx.calibration import (
    Calibration,
    Sample,
    acceptance_of,
    fit_scales,
    position_metrics,
    weighted,
)
from dspark_mlx.command import Parser, add_model_arguments, model_options
from dspark_mlx.errors import CheckpointError, OptionError
from dspark_mlx.events import Round
from dspark_mlx.loading import load
from dspark_mlx.pair import Pair
from dspark_mlx.prompts import BUILT_IN
from dspark_mlx.timing import measure

LEAST_ROUNDS = 100


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = Parser(
        prog="dspark-mlx calibrate",
        description="Verify whole blocks on some prompts, and fit one temperature per draft.",
    )
    p.add_argument(
        "--temperature", "--temp", type=float, default=0.0, help="to decode with (default 0)"
    )
    p.add_argument(
        "--data",
        type=Path,
        help="folder of jsonl files with `turns` (default: a few built-in prompts)",
    )
    p.add_argument("--sets", help="names of the files to use (default: all in the folder)")
    p.add_argument("--prompts", type=int, default=20, help="per file (default 20)")
    p.add_argument("--max-tokens", type=int, default=96, help="per prompt (default 96)")
    p.add_argument(
        "--rounds", type=Path, help="keep every round in this file, and go on where it ends"
    )
    p.add_argument("--dry-run", action="store_true", help="fit and report, keep nothing")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_arguments(p)
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    if args.plain:
        raise OptionError("there is nothing to calibrate without a drafter; leave out --plain")
    pair = load(args.model, **model_options(args), progress=_say)  # type: ignore[arg-type]
    prompts = read_prompts(args.data, args.sets, args.prompts)
    samples = list(collect(pair, prompts, args))
    total = sum(len(part) for part in samples)
    if total < LEAST_ROUNDS:
        raise OptionError(f"{total} rounds are too few to fit to; give {LEAST_ROUNDS} at least")
    assert pair.drafter is not None
    drafts = pair.drafter.drafts_of(pair.drafter.block_size)
    found = report(samples, drafts, args.temperature)
    fit = fitted([s for part in samples for s in part], drafts, args.temperature)
    found["fit"] = fit.to_dict()
    if not args.dry_run:
        pair.tuning.add_calibration(fit)
        found["curve"] = measure(pair).to_dict()
        found["kept_in"] = str(pair.tuning.folder)
    print(json.dumps(found) if args.json else text(found))
    return 0


def collect(
    pair: Pair, prompts: Sequence[tuple[str, str]], args: argparse.Namespace
) -> Iterator[list[Sample]]:
    """The fully verified rounds of every prompt, a list each; those on file are not run again."""
    known = read_rounds(args.rounds, args.temperature) if args.rounds else {}
    for number, (name, prompt) in enumerate(prompts):
        if name not in known:
            _say(f"{name} ({number + 1} of {len(prompts)})")
            known[name] = rounds_of(pair, prompt, args.temperature, args.max_tokens, number)
            if args.rounds:
                _append(args.rounds, name, args.temperature, known[name])
        yield known[name]


def rounds_of(
    pair: Pair, prompt: str, temperature: float, max_tokens: int, seed: int
) -> list[Sample]:
    """Samples of one prompt; rounds that the token limit shortened are left out."""
    assert pair.drafter is not None
    messages = [{"role": "user", "content": prompt}]
    chat = pair.tokenizer.has_chat_template
    asked: dict[str, Any] = {"messages": messages} if chat else {"prompt": prompt}
    full = pair.drafter.drafts_of(pair.drafter.block_size)
    samples = []
    for event in stream(
        pair, **asked, cutoff="full", temperature=temperature, seed=seed, max_tokens=max_tokens
    ):
        if isinstance(event, Round) and event.verified and event.tokens:
            whole = len(event.proposed) == full or pair.drafter.ends_at_stop
            if whole:
                samples.append(Sample(event.proposal_len, event.accepted, event.confidence))
    return samples


def fitted(samples: Sequence[Sample], drafts: int, temperature: float) -> Calibration:
    """The fit to all samples."""
    confident = any(s.confidence is not None for s in samples)
    return Calibration(
        temperature=temperature,
        acceptance=acceptance_of(samples),
        rounds=len(samples),
        scales=fit_scales(samples, drafts) if confident else None,
    )


def report(parts: Sequence[Sequence[Sample]], drafts: int, temperature: float) -> dict[str, Any]:
    """What calibration does to prompts that it was not fitted to: every other one is held out."""
    kept = [s for part in parts[::2] for s in part]
    held = [s for part in parts[1::2] for s in part]
    found: dict[str, Any] = {
        "temperature": temperature,
        "prompts": len(parts),
        "rounds": len(kept) + len(held),
        "acceptance": acceptance_of([*kept, *held]),
    }
    if held and all(s.confidence is not None for s in (*kept, *held)):
        found["held_out"] = _held_out(kept, held, drafts)
        for name in ("ece_before", "ece_sts", "ece_after", "floor", "auroc_before", "auroc_after"):
            found[name] = weighted((row["count"], row[name]) for row in found["held_out"])
    return found


def _held_out(kept: Sequence[Sample], held: Sequence[Sample], drafts: int) -> list[dict[str, Any]]:
    """Per draft: figures of the held-out rounds before, with temperatures alone, and after."""
    scales, alone = fit_scales(kept, drafts), fit_scales(kept, drafts, offsets=False)
    columns = (
        position_metrics(held),
        position_metrics(held, alone),
        position_metrics(held, scales),
    )
    return [
        {
            "draft": k + 1,
            "temperature": scales[k].temperature,
            "offset": scales[k].offset,
            "count": before.count,
            "ece_before": before.ece,
            "ece_sts": sts.ece,
            "ece_after": after.ece,
            "floor": after.floor,
            "auroc_before": before.auroc,
            "auroc_after": after.auroc,
        }
        for k, (before, sts, after) in enumerate(zip(*columns, strict=True))
    ]


def text(found: dict[str, Any]) -> str:
    """`report`'s result in a few lines."""
    fit = Calibration.from_dict(found["fit"], "the fit")
    lines = [
        f"{found['rounds']} rounds of {found['prompts']} prompts at temperature "
        f"{found['temperature']:g}; accept length {fit.accept_len:.2f}"
    ]
    if "held_out" in found:
        lines.append(
            "held out   z/T + b         ECE before   T only  T and b   floor   AUROC before   after"
        )
        for row in [*found["held_out"], found | {"draft": "mean", "temperature": None}]:
            known = row["temperature"] is not None
            scale = f"{row['temperature']:.2f} {row['offset']:+.2f}" if known else ""
            numbers = [row["auroc_before"], row["auroc_after"]]
            shown = ["-" if n is None else f"{n:.3f}" for n in numbers]
            lines.append(
                f"draft {row['draft']:<5}{scale:<15}{row['ece_before']:>11.1%}"
                f"{row['ece_sts']:>9.1%}{row['ece_after']:>9.1%}{row['floor']:>8.1%}"
                f"{shown[0]:>15}{shown[1]:>8}"
            )
    else:
        rates = ", ".join(f"{rate:.0%}" for rate in found["acceptance"])
        lines.append(f"acceptance of each draft, if those before it were accepted: {rates}")
    if "kept_in" in found:
        lines.append(f"kept in {found['kept_in']}")
    return "\n".join(lines)


def read_prompts(data: Path | None, sets: str | None, count: int) -> list[tuple[str, str]]:
    """(name, text) of prompts, the sets taking turns."""
    if count < 1:
        raise OptionError(f"--prompts must be 1 or more, not {count}")
    if data is None:
        named = {name: list(texts) for name, texts in BUILT_IN.items()}
    else:
        names = sets.split(",") if sets else sorted(p.stem for p in data.glob("*.jsonl"))
        if not names:
            raise OptionError(f"{data} holds no jsonl files of prompts")
        named = {name: _turns(data / f"{name}.jsonl") for name in names}
    return [
        (f"{name}/{i}", texts[i])
        for i in range(count)
        for name, texts in named.items()
        if i < len(texts)
    ]


def read_rounds(path: Path, temperature: float) -> dict[str, list[Sample]]:
    """Rounds on file, by the prompt's name."""
    if not path.exists():
        return {}
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"{path} line {number}"
        try:
            body = json.loads(line)
            name, at, rounds = body["prompt"], body["temperature"], body["rounds"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{where} is no record of a prompt's rounds") from error
        if at != temperature:
            raise OptionError(f"{where} was decoded at temperature {at}, not {temperature}")
        found[name] = [Sample.from_list(item, where) for item in rounds]
    return found


def _append(path: Path, name: str, temperature: float, samples: Sequence[Sample]) -> None:
    body = {
        "prompt": name, "temperature": temperature, "rounds": [s.to_list() for s in samples]
    }  # fmt: skip
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(body) + "\n")


def _turns(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["turns"][0] for line in lines if line.strip()]
    except FileNotFoundError as error:
        raise OptionError(f"there is no {path}") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise OptionError(f"{path}: each line must be a JSON object with a list `turns`") from error


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
