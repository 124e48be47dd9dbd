"""What the sequential head costs: the same rounds drafted with it and without it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dspark_mlx.api import stream
from dspark_mlx.events import Round

from .arms import Arm, DrafterChoice
from .prepare import Task

PROMPTS, TOKENS, SKIP = 2, 24, 1  # the first round of a run warms up


def head_cost(choice: DrafterChoice, tasks: Sequence[Task]) -> dict[str, Any]:
    """Median draft time per round with and without the head, interleaved; seconds and share."""
    arms = {True: Arm(choice), False: Arm(choice, head=False)}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    verify: list[float] = []
    for task in tasks[:PROMPTS]:
        for head in (True, False, False, True):
            events = stream(
                arms[head].pair, task.ids, max_tokens=TOKENS, cutoff="full", profile=True
            )
            rounds = [e for e in events if isinstance(e, Round) and e.proposed][SKIP:]
            seconds[head] += [r.draft_seconds or 0.0 for r in rounds]
            verify += [r.verify_seconds or 0.0 for r in rounds]
    if not seconds[True] or not seconds[False]:
        return {"drafter": choice.name, "draft_ms": None, "without_head_ms": None, "share": None}
    on, off = (1000 * statistics.median(seconds[head]) for head in (True, False))
    return {
        "drafter": choice.name,
        "draft_ms": on,
        "without_head_ms": off,
        "verify_ms": 1000 * statistics.median(verify),
        "share": max(1.0 - off / on, 0.0),
    }
