"""Interleaved speed comparison of cutoffs on one pair, against mlx-lm's plain generation.

Every prompt runs once per arm, arms in rotating order, so that drift of the machine hits all of
them alike; ratios are taken within a prompt. Answers are compared token for token. Outcomes are
appended to a file as they come: run again to go on, or with `--report` to read it out.

    python benchmarks/cutoffs.py --record out.jsonl --seconds 170 --prompts 4
    python benchmarks/cutoffs.py --record out.jsonl --report

`--dear MS` makes every block take so much longer, so that speculation loses; the pair is then
measured as it is, in this process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspark_mlx
from dspark_mlx import Finished, Prefilled, Round, load, stream
from dspark_mlx.commands.calibrate import read_prompts
from dspark_mlx.prompt import prompt_ids
from dspark_mlx.timing import measure
from dspark_mlx.tuning import Tuning

PLAIN = "plain"
ARMS = (
    "auto,full,fixed:1,fixed:2,fixed:3,fixed:4,fixed:5,fixed:6,paper,"
    "threshold:0.3,threshold:0.5,threshold:0.7,threshold:0.9"
)
SETS = "gsm8k,math500,humaneval,mbpp,mt-bench"


def main() -> None:
    args = arguments()
    if not args.report:
        collect(args)
    report(args)


def collect(args: argparse.Namespace) -> None:
    pair = load(args.model, args.drafter)
    if args.dear:
        pair = dearer(pair, args.dear / 1000)
    arms = [PLAIN, *args.arms.split(",")]
    known = {(o["prompt"], o["arm"]) for o in read(args.record)}
    began, warm = time.monotonic(), False
    for turn, (name, text) in enumerate(read_prompts(args.data, args.sets, args.prompts)):
        left = [arm for arm in arms if (name, arm) not in known]
        if not left:
            continue
        if time.monotonic() - began > args.seconds:
            return
        ids = prompt_ids(pair, messages=[{"role": "user", "content": text}])
        if len(ids) > args.longest:
            continue
        if not warm:
            for arm in arms:
                run(pair, ids, arm, 6, args)
            warm = True
        for k in range(len(left)):
            arm = left[(k + turn) % len(left)]
            outcome = {"prompt": name, "arm": arm} | run(pair, ids, arm, args.max_tokens, args)
            with args.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(outcome) + "\n")
        print(name, flush=True)


def run(pair: Any, ids: list[int], arm: str, tokens: int, args: argparse.Namespace) -> dict:
    """One answer: its ids, the seconds after the first token, and what was decided."""
    if arm == PLAIN:
        return plain(pair, ids, tokens)
    found: dict[str, Any] = {"tokens": [], "rounds": 0, "verified": 0, "reasons": {}}
    begun = ended = 0.0
    for event in stream(pair, ids, max_tokens=tokens, cutoff=arm, temperature=args.temperature):
        ended = time.perf_counter()
        if isinstance(event, Prefilled):
            begun = ended
            found["tokens"].append(event.token)
        elif isinstance(event, Round):
            found["tokens"] += event.tokens
            found["rounds"] += 1
            found["verified"] += event.verified
            found["reasons"][event.reason] = found["reasons"].get(event.reason, 0) + 1
        elif isinstance(event, Finished):
            break
    return found | {"seconds": ended - begun}


def plain(pair: Any, ids: list[int], tokens: int) -> dict[str, Any]:
    from mlx_lm import stream_generate

    found, times = [], []
    for response in stream_generate(pair.target.model, pair.tokenizer, ids, max_tokens=tokens):
        found.append(response.token)
        times.append(time.perf_counter())
    return {"tokens": found, "seconds": times[-1] - times[0]}


def dearer(pair: Any, seconds: float) -> Any:
    """The same pair, whose drafter takes so much longer per block; measured as it is."""
    propose = pair.drafter.propose

    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return propose(*args)

    pair.drafter.propose = slow
    pair = dataclasses.replace(pair, tuning=Tuning())
    measure(pair)
    return pair


def read(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return (json.loads(line) for line in lines)


def report(args: argparse.Namespace) -> None:
    by_prompt: dict[str, dict[str, dict[str, Any]]] = {}
    for outcome in read(args.record):
        by_prompt.setdefault(outcome["prompt"], {})[outcome["arm"]] = outcome
    whole = {name: arms for name, arms in by_prompt.items() if PLAIN in arms}
    arms = list(dict.fromkeys(arm for outcomes in whole.values() for arm in outcomes))
    print(f"dspark-mlx {dspark_mlx.__version__}, {len(whole)} prompts")
    for group in (*args.sets.split(","), ""):
        mine = {n: o for n, o in whole.items() if n.startswith(group + "/" if group else "")}
        for arm in arms:
            if text := line(mine, arm):
                print(f"{group or 'all':10} {text}")


def line(prompts: dict[str, dict[str, dict[str, Any]]], arm: str) -> str:
    """Rate over plain (geometric mean, quartiles, standard error), and counts."""
    pairs = [
        (o[arm], o[PLAIN]) for o in prompts.values() if arm in o and len(o[PLAIN]["tokens"]) > 8
    ]
    if not pairs:
        return ""
    logs = [math.log(rate(mine) / rate(base)) for mine, base in pairs]
    low, _, high = statistics.quantiles(logs, n=4) if len(logs) > 1 else logs * 3
    error = statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else math.nan
    unequal = sum(mine["tokens"] != base["tokens"] for mine, base in pairs)
    pooled = sum(len(m["tokens"]) - 1 for m, _ in pairs) / sum(m["seconds"] for m, _ in pairs)
    text = f"{arm:14} x{math.exp(statistics.fmean(logs)):.3f} +-{error:.3f} "
    text += f"[{math.exp(low):.3f}, {math.exp(high):.3f}] {pooled:6.2f} tok/s"
    if rounds := sum(m.get("rounds", 0) for m, _ in pairs):
        drafts = sum(m["verified"] for m, _ in pairs)
        tokens = sum(len(m["tokens"]) - 1 for m, _ in pairs)
        text += f"  accept {tokens / rounds:.2f}, verified {drafts / rounds:.2f}"
    return text + (f"  UNEQUAL {unequal}" if unequal else "")


def rate(outcome: dict[str, Any]) -> float:
    return (len(outcome["tokens"]) - 1) / outcome["seconds"]


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default="smollm2-135m")
    p.add_argument("--drafter")
    p.add_argument("--record", type=Path, required=True, help="outcomes, one JSON line each")
    p.add_argument("--report", action="store_true", help="run nothing")
    p.add_argument("--arms", default=ARMS)
    p.add_argument("--data", type=Path)
    p.add_argument("--sets", default=SETS)
    p.add_argument("--prompts", type=int, default=3, help="per data set")
    p.add_argument("--longest", type=int, default=400, help="prompts with more tokens are left out")
    p.add_argument("--max-tokens", type=int, default=64)
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--seconds", type=float, default=170, help="begin no prompt after this time")
    p.add_argument("--dear", type=float, default=0.0, help="milliseconds added to every block")
    return p.parse_args()


if __name__ == "__main__":
    main()
