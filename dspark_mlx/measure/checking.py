"""`check` over prompts and arms: resumable records, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dspark_mlx._version import __version__
from dspark_mlx.sampling import Sampling

from .arms import Arm
from .distribution import judge, transformed
from .lossless import EQUAL, TIE, explain, plain_answer, speculative_answer
from .models import Models
from .prepare import Task
from .store import Store, key_of

Done = Callable[[str, bool], None]


def check_greedy(
    models: Models,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    max_tokens: int,
    store: Store,
    exact: bool,
    done: Done,
) -> list[dict[str, Any]]:
    """One record per prompt and arm; plain answers are kept and shared by all arms and runs."""
    records = []
    for task in tasks:
        base = {
            "version": __version__, "target": models.identity, "prompt": task.ids,
            "max_tokens": max_tokens,
        }  # fmt: skip
        keys = [key_of(**base, arm=arm.identity, exact=exact) for arm in arms]
        plain: list[int] | None = None
        for arm, key in zip(arms, keys, strict=True):
            known = store.get(key)
            if known is None:
                plain = plain or _plain(models, task, max_tokens, store, key_of(**base))
                found = _compare(models, arm, task, plain, max_tokens, exact)
                records.append(store.put(key, found) | _names(arm, task))
            else:
                records.append(known | _names(arm, task))
            done(f"{task.example.label} {records[-1]['verdict']}", known is not None)
    return records


def _names(arm: Arm, task: Task) -> dict[str, Any]:
    return {"arm": arm.name, "set": task.example.set, "index": task.example.index}


def _plain(models: Models, task: Task, max_tokens: int, store: Store, key: str) -> list[int]:
    known = store.get(key) or store.put(
        key, {"plain": plain_answer(models.plain, task.ids, max_tokens)}
    )
    tokens: list[int] = known["plain"]
    return tokens


def _compare(
    models: Models, arm: Arm, task: Task, plain: list[int], max_tokens: int, exact: bool
) -> dict[str, Any]:
    ours = speculative_answer(arm, task.ids, max_tokens, exact)
    found = explain(models.plain, arm, task.ids, plain, ours, max_tokens, exact)
    decode = models.plain.tokenizer.decode
    texts = {}
    if found is not None:
        for name, token in (("plain", found.plain), ("speculative", found.speculative)):
            texts[f"{name}_text"] = None if token is None else decode([token])
    return {
        "tokens": len(plain),
        "verdict": found.verdict if found else EQUAL,
        "difference": found.to_dict() | texts if found else None,
    }


def greedy_summary(records: Sequence[dict[str, Any]], arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Per arm: prompts, equal ones, near ties, faults, and the rate of differing prompts."""
    rows = []
    for arm in arms:
        mine = [r for r in records if r["arm"] == arm.name]
        equal = sum(r["verdict"] == EQUAL for r in mine)
        ties = sum(r["verdict"] == TIE for r in mine)
        rows.append(
            {
                "arm": arm.name,
                "prompts": len(mine),
                "tokens": sum(r["tokens"] for r in mine),
                "equal": equal,
                "near_ties": ties,
                "faults": len(mine) - equal - ties,
                "rate": (len(mine) - equal) / len(mine) if mine else None,
            }
        )
    return rows


def seed_of(seed: int, key: str, number: int) -> int:
    """A seed for each sample that no other prompt shares: all numbers must be independent."""
    return int(key_of(seed=seed, key=key, number=number)[:12], 16)


def check_sampled(
    models: Models,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    sampling: Sampling,
    tokens: int,
    samples: int,
    seed: int,
    store: Store,
    done: Done,
) -> list[dict[str, Any]]:
    """One test per arm over all prompts and samples; the numbers are kept per prompt."""
    numbers: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for task in tasks:
        for arm in arms:
            key = key_of(
                version=__version__, target=models.identity, prompt=task.ids, arm=arm.identity,
                sampling=vars(sampling), tokens=tokens, samples=samples, seed=seed,
                place=task.example.label,
            )  # fmt: skip
            known = store.get(key)
            if known is None:
                found = [
                    u
                    for n in range(samples)
                    for u in transformed(
                        models.plain, arm, task.ids, sampling, tokens,
                        seed_of(seed, key, n),
                    )
                ]  # fmt: skip
                record = store.put(key, {"numbers": found})
            else:
                record = known
            numbers[arm.name] += record["numbers"]
            done(task.example.label, known is not None)
    return [{"arm": name, "prompts": len(tasks), **judge(found)} for name, found in numbers.items()]
