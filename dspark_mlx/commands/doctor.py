"""`dspark-mlx doctor`: this machine, and whether speculation pays on it for a pair."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from dspark_mlx import __version__, machine, paths
from dspark_mlx.calibration import Calibration
from dspark_mlx.command import Parser, add_model_arguments, model_options
from dspark_mlx.costs import CostCurve, bucket_of
from dspark_mlx.errors import OptionError
from dspark_mlx.loading import load
from dspark_mlx.pair import Pair
from dspark_mlx.timing import FULL_CONTEXT, measure

# accept lengths that drafters reach, where this pair's own is not known
USUAL = (1.5, 2.0, 3.0, 4.0)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = Parser(
        prog="dspark-mlx doctor",
        description="Show the machine, measure a pair on it, and say whether speculation pays.",
    )
    p.add_argument("--no-pair", action="store_true", help="the machine only; load nothing")
    p.add_argument("--refresh", action="store_true", help="measure again what is known")
    p.add_argument(
        "--context", type=int, default=FULL_CONTEXT,
        help=f"cached positions to measure at (default {FULL_CONTEXT})",
    )  # fmt: skip
    p.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_arguments(p)
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    if args.context < 1:
        raise OptionError(f"--context must be 1 or more, not {args.context}")
    if args.plain:
        raise OptionError("without a drafter there is nothing to weigh; leave out --plain")
    found: dict[str, Any] = {"machine": about()}
    if not args.no_pair:
        pair = load(args.model, **model_options(args), progress=_say)  # type: ignore[arg-type]
        found |= examine(pair, args.context, args.refresh) | {"pair": args.model}
    print(json.dumps(found) if args.json else text(found))
    return 0


def about() -> dict[str, Any]:
    """The machine, JSON-ready."""
    return {
        "chip": machine.chip(),
        "memory_gb": machine.memory(),
        "cores": machine.cores(),
        "device": machine.device(),
        "versions": {"dspark-mlx": __version__} | machine.versions(),
        "data_folder": str(paths.home()),
    }


def examine(pair: Pair, context: int, refresh: bool) -> dict[str, Any]:
    """What was known of the pair, what was measured now, and the verdict on each."""
    bucket = bucket_of(context)
    before = pair.tuning.curves.get(bucket)
    curve = before
    if before is None or refresh or before.sweeps < 4:  # a quick curve is no measurement
        curve = measure(pair, context)
    assert curve is not None
    fits = pair.tuning.calibrations
    return {
        "before": None if before is None else verdict(before, fits),
        "curve": curve.to_dict(),
        "break_even": [curve.break_even(m) for m in range(1, curve.drafts + 1)],
        "plain_tok_s": 1 / curve.plain,
        "calibrations": {f"{t:g}": fit.to_dict() for t, fit in sorted(fits.items())},
        "verdict": verdict(curve, fits),
    }


def verdict(curve: CostCurve, fits: dict[float, Calibration]) -> list[str]:
    """Whether speculation pays, for each calibrated temperature, or for usual accept lengths."""
    if not curve.can_pay:
        return ["speculation cannot pay here: even with every draft accepted it would lose"]
    lines = []
    for temperature, fit in sorted(fits.items()):
        gain, drafts = best(curve, fit.acceptance)
        mode = "greedy" if temperature == 0 else f"temperature {temperature:g}"
        lines.append(f"{mode}: {_says(gain, drafts)} (accept length {fit.accept_len:.2f})")
    if lines:
        return lines
    needed = min(curve.break_even(m) for m in range(1, curve.drafts + 1))
    reach = ", ".join(
        f"{length:g}: {length / curve.break_even(curve.drafts):.2f}x" for length in USUAL
    )
    return [
        f"pays from an accept length of {needed:.2f} on (verifying few drafts); by whole blocks, "
        f"accept length {reach}",
        "run `dspark-mlx calibrate` to learn this pair's accept length",
    ]


def best(curve: CostCurve, acceptance: tuple[float, ...]) -> tuple[float, int]:
    """The best constant number of drafts at these acceptances, and its rate over plain."""
    gain, drafts, tokens, alive = 1.0, 0, 1.0, 1.0
    for m, rate in enumerate(acceptance[: curve.drafts], start=1):
        alive *= rate
        tokens += alive
        if tokens / curve.break_even(m) > gain:
            gain, drafts = tokens / curve.break_even(m), m
    return gain, drafts


def _says(gain: float, drafts: int) -> str:
    if drafts == 0:
        return "speculation would lose; auto decodes plainly"
    return f"about {gain:.2f}x plain decoding by verifying {drafts} drafts"


def text(found: dict[str, Any]) -> str:
    """The findings in a few lines."""
    m = found["machine"]
    named = ", ".join(f"{name} {number}" for name, number in m["versions"].items())
    lines = [
        f"chip      {m['chip']}, {m['cores']} cores, {m['memory_gb']:.0f} GB",
        f"device    {m['device']}",
        f"versions  {named}",
        f"data      {m['data_folder']}",
    ]
    if "curve" not in found:
        return "\n".join(lines)
    curve = CostCurve.from_dict(found["curve"], "the curve")
    known = found["before"]
    lines += [
        f"pair      {found['pair']}",
        "before    " + ("nothing measured yet" if known is None else "; ".join(known)),
        f"plain     {1e3 * curve.plain:.1f} ms per token, {found['plain_tok_s']:.1f} tok/s",
        "drafts    verify ms   draft ms   round ms   break-even accept length",
    ]
    for k in range(1, curve.drafts + 1):
        lines.append(
            f"{k:>6}{1e3 * curve.verify[k]:>14.1f}{1e3 * curve.draft[k - 1]:>11.1f}"
            f"{1e3 * curve.round(k, k):>11.1f}{found['break_even'][k - 1]:>15.2f}"
        )
    lines.append(f"a look at the confidences costs {1e3 * curve.look:.1f} ms")
    lines += [f"verdict   {line}" for line in found["verdict"]]
    return "\n".join(lines)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
