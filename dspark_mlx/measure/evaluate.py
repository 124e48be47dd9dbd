"""Decode prompts with every arm and keep what each round did (DeepSpec's protocol, section 10.1).

A generation counts exactly the rounds that DeepSpec counts: blocks are never shortened near
the limit, and a round counts if it begins before the limit, with all it committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dspark_mlx._version import __version__
from dspark_mlx.api import stream
from dspark_mlx.events import Finished, Prefilled, Round
from dspark_mlx.options import Options

from .arms import Arm
from .metrics import RoundRecord, to_columns
from .prepare import Task
from .store import Store, key_of


@dataclass(frozen=True)
class EvalSettings:
    """How every prompt is decoded; the n-th prompt of a set is seeded with `seed` + n."""

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _ = Options(max_tokens=self.max_tokens, seed=self.seed, **self.sampling)  # checks them

    @property
    def sampling(self) -> dict[str, Any]:
        """The options that choose tokens."""
        names = ("temperature", "top_p", "top_k", "min_p")
        return {name: getattr(self, name) for name in names}


def evaluate(
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    settings: EvalSettings,
    store: Store,
    target: str,
    done: Callable[[str, bool], None] = lambda note, known: None,
) -> list[dict[str, Any]]:
    """One record per prompt and arm, arm by arm within a prompt; known ones are not run again.

    `target` is the target's content hash, with its precision; `done(note, known)` is called
    after each record.
    """
    records = []
    for task in tasks:
        for arm in arms:
            key = key_of(
                version=__version__, target=target, arm=arm.identity, prompt=task.ids,
                settings=vars(settings), index=task.example.index,
            )  # fmt: skip
            known = store.get(key)
            records.append(known or store.put(key, _record(arm, task, settings)))
            done(task.example.label, known is not None)
    return [label(record, arms, tasks, i) for i, record in enumerate(records)]


def label(
    record: dict[str, Any], arms: Sequence[Arm], tasks: Sequence[Task], number: int
) -> dict[str, Any]:
    """A stored record under the names that this run gives to its arm and prompt."""
    example = tasks[number // len(arms)].example
    return record | {
        "arm": arms[number % len(arms)].name,
        "set": example.set,
        "domain": example.domain,
        "index": example.index,
    }


def _record(arm: Arm, task: Task, settings: EvalSettings) -> dict[str, Any]:
    tokens: list[int] = []
    rounds: list[RoundRecord] = []
    reason, prefill = "length", 0.0
    for event in counted_events(arm, task.ids, settings, settings.seed + task.example.index):
        if isinstance(event, Prefilled):
            tokens.append(event.token)
            prefill = event.seconds
            reason = event.finish_reason or reason
        elif isinstance(event, Round):
            tokens += event.tokens
            rounds.append(RoundRecord.of(event))
            reason = event.finish_reason or reason
    if len(tokens) > settings.max_tokens:
        tokens, reason = tokens[: settings.max_tokens], "length"
    return {
        "prompt_tokens": len(task.ids),
        "tokens": tokens,
        "finish_reason": reason,
        "prefill_seconds": prefill,
        "rounds": to_columns(rounds),
    }


def counted_events(
    arm: Arm, ids: Sequence[int], settings: EvalSettings, seed: int
) -> Iterator[Any]:
    """The events of a generation up to the last round that DeepSpec would have begun."""
    events = stream(
        arm.pair,
        ids,
        max_tokens=settings.max_tokens + arm.block + 1,  # so that no counted block is cut short
        cutoff=arm.cutoff,
        block_size=arm.block_size,
        seed=seed,
        **settings.sampling,
    )
    limit, position = len(ids) + settings.max_tokens, len(ids)
    for event in events:
        if isinstance(event, Finished):
            return
        yield event
        if isinstance(event, Round):
            position = event.anchor_position + len(event.tokens)
        if position >= limit:
            return
