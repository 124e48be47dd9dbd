"""Prompts as token ids, checked against the target's context before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dspark_mlx.errors import OptionError
from dspark_mlx.pair import Pair
from dspark_mlx.prompt import prompt_ids

from .datasets import DataSet, Example


@dataclass(frozen=True)
class Task:
    """A prompt ready to run."""

    example: Example
    ids: tuple[int, ...] = field(repr=False)


def prepare(
    pair: Pair,
    sets: Sequence[DataSet],
    *,
    raw: bool = False,
    skip_long: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> list[Task]:
    """Tasks of all sets, in order, through the chat template unless `raw`.

    A prompt that fills the target's context raises OptionError, or is left out (and counted
    in one notice) with `skip_long`.
    """
    room, tasks, long = pair.target.context_limit, [], []
    templated = not raw and pair.tokenizer.has_chat_template
    for example in (e for s in sets for e in s.examples):
        message = [{"role": "user", "content": example.text}]
        ids = prompt_ids(pair, messages=message) if templated else prompt_ids(pair, example.text)
        if not ids:
            raise OptionError(f"{example.label} has no tokens; take it out of its file")
        if room is not None and len(ids) >= room:
            long.append(f"{example.label} has {len(ids)} tokens")
            continue
        tasks.append(Task(example, tuple(ids)))
    if long and not skip_long:
        more = f" (and {len(long) - 1} more)" if len(long) > 1 else ""
        raise OptionError(
            f"{long[0]}{more}, {pair.target.name} has room for {room}; shorten or --skip-long"
        )
    if long:
        notify(f"left out {len(long)} prompts that fill the context of {room} tokens")
    if not tasks:
        raise OptionError("no prompts are left to run")
    return tasks
