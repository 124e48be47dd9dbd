"""Several drafters of one target side by side: draft time, bytes per round, accept length.

Greedy speculation commits the target's own greedy answer whatever the drafter, so with the
answers known only the drafter has to run: every round of every drafter is replayed against
them, drafters in rotating order round for round, so that drift of the machine hits all alike.

    python benchmarks/drafters.py --run reference_run.json full=FOLDER 4k=FOLDER ...

`--run` is a JSON file {"data_sets": {set: {"prompts": [{"index", "output_ids"}]}}} of the
target's greedy answers to the prompts of `--data` (DeepSpec's jsonl files, first turn, default
chat template). Prints a table, and with `--json` writes everything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspark_mlx  # before mlx: it loads a fast BLAS

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten

from dspark_mlx import Pair, load
from dspark_mlx.checkpoints import open_drafter
from dspark_mlx.convert.result import bytes_per_round
from dspark_mlx.loading import with_drafter
from dspark_mlx.prompt import prompt_ids


@dataclass
class Arm:
    """One drafter, with the accept length of every replayed round by set, and draft seconds."""

    name: str
    pair: Pair
    stored: int  # bytes that a full block would read of the weights as they are stored
    lengths: dict[str, list[int]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes of weights that a full block reads, as this drafter is loaded."""
        drafter: Any = self.pair.drafter
        own = bytes_per_round(dict(tree_flatten(drafter.parameters())), drafter.config)
        target = self.pair.target
        head = 0 if drafter.config.head == "own" else target.vocab_size * target.hidden_size * 4
        return own + head


def stored_bytes(folder: str) -> int:
    """Bytes of a drafter's own weights on disk that a full block reads."""
    source = open_drafter(Path(folder))
    with source.tensors as tensors:
        weights = {name: tensors.read(name) for name in tensors.infos}
        return bytes_per_round(weights, source.config)


def replay(arm: Arm, features: list[mx.array], ids: list[int], first: int) -> Iterator[int]:
    """Yield the accept length of each round over the answer ids[first:], the prompt before it."""
    drafter: Any = arm.pair.drafter
    context = drafter.start()
    drafter.extend(context, [rows[:first] for rows in features], mx.array(ids[1 : first + 1]))
    mx.eval(context.arrays())
    at = first  # of the anchor
    while at + 1 < len(ids):
        count = min(drafter.drafts_of(drafter.block_size), len(ids) - at - 1)
        begun = time.perf_counter()
        drawn = drafter.propose(context, ids[at], drafter.block_size, count, _greedy)
        drafts: Any = drawn.tokens.tolist()
        if count == drafter.drafts_of(drafter.block_size):
            arm.seconds.append(time.perf_counter() - begun)
        accepted = next(
            (k for k, draft in enumerate(drafts) if draft != ids[at + 1 + k]), len(drafts)
        )
        end = min(at + accepted + 1, len(ids) - 1)
        rows = [layer[at:end] for layer in features]
        drafter.extend(context, rows, mx.array(ids[at + 1 : end + 1]))
        yield end - at
        at = end


def _greedy(logits: mx.array) -> tuple[mx.array, None]:
    return mx.argmax(logits, axis=-1), None


def measure(arms: list[Arm], answers: dict[str, list[tuple[list[int], list[int]]]]) -> None:
    """Replay every answer with every arm, one round of each in turn."""
    for name, pairs in answers.items():
        for prompt, output in pairs:
            ids = prompt + output
            target = arms[0].pair.target
            tapped = target.tapped(arms[0].pair.drafter.config.target_layer_ids)  # type: ignore[union-attr]
            _, features = tapped(mx.array(ids), target.new_cache())
            mx.eval(features)
            going = {arm.name: replay(arm, features, ids, len(prompt)) for arm in arms}
            turn = 0
            while going:
                order = arms[turn % len(arms) :] + arms[: turn % len(arms)]
                for arm in order:
                    if arm.name in going:
                        length = next(going[arm.name], None)
                        if length is None:
                            del going[arm.name]
                        else:
                            arm.lengths.setdefault(name, []).append(length)
                turn += 1
        print(f"{name} done", flush=True)


def table(arms: list[Arm], sets: list[str]) -> list[dict[str, Any]]:
    """One row an arm; printed, and returned for the JSON file."""
    columns = " ".join(f"{s:>9}" for s in sets)
    print(f"\n{'drafter':12} {'MB stored':>9} {'MB read':>8} {'draft ms':>16} {columns}"
          f"{'all':>10} {'vs first':>9}")  # fmt: skip
    rows = []
    for arm in arms:
        every = [n for lengths in arm.lengths.values() for n in lengths]
        base = [n for lengths in arms[0].lengths.values() for n in lengths]
        row = {
            "drafter": arm.name,
            "stored_bytes_per_round": arm.stored,
            "bytes_per_round": arm.bytes,
            "draft_ms": [1000 * q for q in statistics.quantiles(arm.seconds, n=4)],
            "accept_len": {s: statistics.fmean(arm.lengths[s]) for s in sets},
            "accept_len_all": statistics.fmean(every),
            "relative": statistics.fmean(every) / statistics.fmean(base),
        }
        low, mid, high = row["draft_ms"]
        cells = " ".join(f"{row['accept_len'][s]:9.3f}" for s in sets)
        print(f"{arm.name:12} {arm.stored / 1e6:9.1f} {arm.bytes / 1e6:8.1f} "
              f"{mid:5.1f} [{low:4.1f},{high:4.1f}] {cells} "
              f"{row['accept_len_all']:9.4f} {row['relative']:9.4f}")  # fmt: skip
        rows.append(row)
    return rows


def read_answers(
    pair: Pair, run: Path, data: Path, most: int
) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Per set: (prompt ids, the target's greedy answer) for up to `most` recorded prompts."""
    recorded = json.loads(run.read_text(encoding="utf-8"))
    recorded = recorded.get("data_sets", recorded)
    answers = {}
    for name, entries in recorded.items():
        lines = (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        answers[name] = [
            (
                prompt_ids(pair, messages=[{"role": "user", "content": turn}]),
                list(entry["output_ids"]),
            )
            for entry in entries["prompts"][:most]
            for turn in json.loads(lines[entry["index"]])["turns"][:1]
        ]
    return answers


def main() -> None:
    args = arguments()
    named = dict(drafter.split("=", 1) for drafter in args.drafters)
    base = load(args.model, False)
    arms = []
    for name, folder in named.items():
        folder, _, keep = folder.partition("@")
        pair = load(args.model, folder, quantize="keep") if keep else with_drafter(base, folder)
        arms.append(Arm(name, pair, stored_bytes(folder)))
    answers = read_answers(base, args.run, args.data, args.prompts)
    measure(arms, answers)
    rows = table(arms, list(answers))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    p.add_argument("drafters", nargs="+", metavar="NAME=FOLDER", help="FOLDER@keep: stay quantized")
    p.add_argument("--model", default="smollm2-135m")
    p.add_argument("--run", type=Path, required=True)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--prompts", type=int, default=6, help="per data set")
    p.add_argument("--json", type=Path)
    return p.parse_args()


if __name__ == "__main__":
    print(f"dspark-mlx {dspark_mlx.__version__}, BLAS {dspark_mlx.blas.active()}")
    main()
