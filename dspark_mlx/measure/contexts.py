"""Prompts of a wanted length: the same questions behind more text of the same kind."""

from __future__ import annotations

from collections.abc import Sequence

from dspark_mlx.errors import OptionError
from dspark_mlx.pair import Pair

from .prepare import Task


def lengthened(
    pair: Pair, tasks: Sequence[Task], length: int, max_tokens: int
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(label, ids) of each task, filled up in front to exactly `length` tokens.

    The filling is the other prompts' text, over and over. OptionError where the target has
    less room, or a prompt is longer already.
    """
    room = pair.target.context_limit
    if room is not None and length + max_tokens > room:
        raise OptionError(
            f"--contexts {length} and {max_tokens} tokens do not fit: {pair.target.name} has room "
            f"for {room}"
        )
    longest = max(len(task.ids) for task in tasks)
    if longest > length:
        raise OptionError(f"--contexts {length} is shorter than a prompt of {longest} tokens")
    found = []
    for number, task in enumerate(tasks):
        others = [*tasks[number + 1 :], *tasks[: number + 1]]
        filling = [token for other in others for token in other.ids]
        missing = length - len(task.ids)
        front = (filling * (missing // len(filling) + 1))[:missing]
        found.append((task.example.label, (*front, *task.ids)))
    return tuple(found)
