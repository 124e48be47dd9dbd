"""Interleaved speed comparison on one pair: mlx-lm's plain generation against our cutoffs.

Every prompt runs once per arm and repeat, arms in rotating order, so that drift of the machine
hits all of them alike; ratios are taken within a prompt and repeat. Answers are compared token
for token: a ratio between runs that did unequal work is not printed.

    python benchmarks/compare.py --prompts 3 --cutoffs full,fixed:1,fixed:2,threshold:0.5

`--data DIR` takes DeepSpec's jsonl files (`turns`); without it a few built-in prompts are used.
`--peer 1,2,7` adds mlx-dspark at these draft caps, where it is installed.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspark_mlx
from dspark_mlx import Finished, Prefilled, Round, Stats, load, stream
from dspark_mlx.blas import active
from dspark_mlx.prompt import prompt_ids
from dspark_mlx.prompts import BUILT_IN


@dataclass
class Outcome:
    """One run: generated ids, seconds between the first token and the last, and statistics."""

    tokens: list[int]
    seconds: float
    stats: Stats | None = None


@dataclass
class Arm:
    """A way to generate, with its outcomes per (data set, prompt, repeat)."""

    name: str
    run: Callable[[list[int], int], Outcome]
    outcomes: dict[tuple[str, int, int], Outcome] = field(default_factory=dict)


def main() -> None:
    args = arguments()
    pair = load(args.model, args.drafter, quantize=args.quantize)
    arms = [plain_arm(pair)]
    arms += [our_arm(pair, cutoff) for cutoff in args.cutoffs.split(",") if cutoff]
    arms += peer_arms(args) if args.peer else []
    sets = read_sets(args)
    prompts = {
        (name, i): prompt_ids(pair, messages=[{"role": "user", "content": text}])
        for name, texts in sets.items()
        for i, text in enumerate(texts)
    }
    warm = next(iter(prompts.values()))
    for arm in arms:
        arm.run(warm, 8)
    for repeat in range(args.repeats):
        for turn, ((name, i), ids) in enumerate(prompts.items()):
            for k in range(len(arms)):
                arm = arms[(k + turn + repeat) % len(arms)]
                arm.outcomes[name, i, repeat] = arm.run(ids, args.max_tokens)
            print(f"repeat {repeat + 1}: {name} {i + 1}/{len(sets[name])}", flush=True)
    report(args, arms, list(sets), profile(pair, prompts, args.max_tokens))


def plain_arm(pair: Any) -> Arm:
    from mlx_lm import stream_generate

    def run(ids: list[int], max_tokens: int) -> Outcome:
        tokens, times = [], []
        for response in stream_generate(
            pair.target.model, pair.tokenizer, ids, max_tokens=max_tokens
        ):
            tokens.append(response.token)
            times.append(time.perf_counter())
        return Outcome(tokens, times[-1] - times[0])

    return Arm("mlx-lm plain", run)


def our_arm(pair: Any, cutoff: str) -> Arm:
    def run(ids: list[int], max_tokens: int, **options: Any) -> Outcome:
        stats, tokens, begun, ended = Stats(), [], 0.0, 0.0
        for event in stream(pair, ids, max_tokens=max_tokens, cutoff=cutoff, **options):
            stats.add(event)
            ended = time.perf_counter()
            if isinstance(event, Prefilled):
                begun = ended
                tokens.append(event.token)
            elif isinstance(event, Round):
                tokens += event.tokens
            elif isinstance(event, Finished):
                break
        return Outcome(tokens, ended - begun, stats)

    return Arm(cutoff, run)


def peer_arms(args: argparse.Namespace) -> list[Arm]:
    import mlx.core as mx
    from mlx_dspark import load_drafter, load_target, speculative_generate

    target, tokenizer = load_target(str(args.peer_target), require_tap=True)
    drafter, _ = load_drafter(str(args.peer_drafter), quantize=False)
    for model in (target.model, drafter):  # as ours: float32 is this backend's fast path
        model.set_dtype(mx.float32)
    drafter.ctx_window = 4096

    def arm(cap: int) -> Arm:
        def run(ids: list[int], max_tokens: int) -> Outcome:
            result = speculative_generate(
                target, tokenizer, drafter, prompt_ids=ids, max_new_tokens=max_tokens,
                max_draft_tokens=cap, lookup_drafts=False,
            )  # fmt: skip
            return Outcome(list(result.token_ids), result.seconds - result.prefill_seconds)

        return Arm(f"mlx-dspark cap {cap}", run)

    return [arm(int(cap)) for cap in args.peer.split(",")]


def profile(pair: Any, prompts: dict[Any, list[int]], max_tokens: int) -> dict[str, float]:
    """Shares of a profiled full-block run: draft forward, verify forward, everything else."""
    total = Stats()
    run = our_arm(pair, "full").run
    for ids in list(prompts.values())[:4]:
        outcome = run(ids, max_tokens, profile=True)  # type: ignore[call-arg]
        for name in ("draft_seconds", "verify_seconds", "decode_seconds"):
            setattr(total, name, (getattr(total, name) or 0) + getattr(outcome.stats, name))
    draft = (total.draft_seconds or 0) / total.decode_seconds
    verify = (total.verify_seconds or 0) / total.decode_seconds
    return {"draft": draft, "verify": verify, "other": 1 - draft - verify}


def report(
    args: argparse.Namespace, arms: list[Arm], sets: list[str], split: dict[str, float]
) -> None:
    rows = [row(arm, arms[0], name) for name in [*sets, "all"] for arm in arms]
    print(f"\n{machine()}; {args.max_tokens} tokens, greedy, {args.repeats} repeat(s)")
    for line in rows:
        print(line["text"])
    shares = ", ".join(f"{name} {value:.1%}" for name, value in split.items())
    print(f"profiled full-block round: {shares}")
    if args.json:
        body = {"machine": machine(), "rows": rows, "profile": split, "arguments": vars(args)}
        Path(args.json).write_text(json.dumps(body, indent=1, default=str) + "\n")


def row(arm: Arm, plain: Arm, name: str) -> dict[str, Any]:
    """Pooled rate, paired ratios to plain (geometric mean, quartiles), counts that never drift."""
    mine = {k: o for k, o in arm.outcomes.items() if name in ("all", k[0])}
    ratios, unequal, tokens, seconds = [], 0, 0, 0.0
    for key, outcome in mine.items():
        base = plain.outcomes[key]
        unequal += outcome.tokens[: len(base.tokens)] != base.tokens
        tokens += len(outcome.tokens) - 1
        seconds += outcome.seconds
        ratios.append(rate(outcome) / rate(base))
    gain = math.exp(statistics.fmean(map(math.log, ratios)))
    low, high = quartiles(ratios)
    rounds = sum(o.stats.rounds for o in mine.values() if o.stats)
    line = f"{name:10} {arm.name:18} {tokens / seconds:6.2f} tok/s  "
    line += (
        "ratio not shown: unequal answers" if unequal else f"x{gain:.3f} [{low:.3f}, {high:.3f}]"
    )
    if rounds:
        committed = sum(o.stats.committed for o in mine.values() if o.stats)
        prefills = 2 * len(mine)  # one wait for the prompt, one for the first token
        syncs = sum(o.stats.syncs for o in mine.values() if o.stats) - prefills
        line += f"  accept {committed / rounds:.3f}  syncs/round {syncs / rounds:.3f}"
    return {"set": name, "arm": arm.name, "tok_s": tokens / seconds, "ratio": gain,
            "quartiles": [low, high], "unequal": unequal, "text": line}  # fmt: skip


def rate(outcome: Outcome) -> float:
    return (len(outcome.tokens) - 1) / outcome.seconds


def quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    cuts = statistics.quantiles(values, n=4, method="inclusive")
    return cuts[0], cuts[2]


def read_sets(args: argparse.Namespace) -> dict[str, list[str]]:
    if args.data is None:
        return {name: list(texts[: args.prompts]) for name, texts in BUILT_IN.items()}
    sets = {}
    for name in args.sets.split(","):
        lines = (Path(args.data) / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        sets[name] = [json.loads(line)["turns"][0] for line in lines[: args.prompts]]
    return sets


def machine() -> str:
    from importlib.metadata import version

    return (
        f"{platform.system()} {platform.machine()}, mlx {version('mlx')}, "
        f"mlx-lm {version('mlx-lm')}, dspark-mlx {dspark_mlx.__version__}, BLAS {active()}"
    )


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default="smollm2-135m")
    p.add_argument("--drafter")
    p.add_argument("--quantize", choices=("keep",))
    p.add_argument("--cutoffs", default="full,fixed:1,fixed:2")
    p.add_argument("--data", type=Path)
    p.add_argument("--sets", default="gsm8k,math500,humaneval,mbpp,mt-bench")
    p.add_argument("--prompts", type=int, default=3, help="per data set")
    p.add_argument("--max-tokens", type=int, default=96)
    p.add_argument("--repeats", type=int, default=1)
    p.add_argument("--peer", help="mlx-dspark draft caps, as 1,2,7")
    p.add_argument("--peer-target", type=Path, help="target folder for the peer")
    p.add_argument("--peer-drafter", type=Path, help="unconverted drafter folder for the peer")
    p.add_argument("--json", help="write all figures to this file")
    return p.parse_args()


if __name__ == "__main__":
    main()
