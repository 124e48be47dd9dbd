"""From timed generations to rows: medians, spreads, ratios of equal work, counts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from .benchmark import Case, Outcome, Timing


def rows(timings: Sequence[Timing], cases: Sequence[Case], base: str) -> list[dict[str, Any]]:
    """One JSON-ready row per case and arm, in the order of the runs; `base` is ratio 1."""
    found = []
    for number, case in enumerate(cases):
        here = [t for t in timings if t.case == number]
        plain = {(t.prompt, t.repeat): t.outcome for t in here if t.arm == base}
        for arm in dict.fromkeys(t.arm for t in sorted(here, key=lambda t: t.arm != base)):
            mine = {(t.prompt, t.repeat): t.outcome for t in here if t.arm == arm}
            found.append(_row(case, arm, mine, plain))
    return found


def _row(
    case: Case,
    arm: str,
    mine: dict[tuple[str, int], Outcome],
    plain: dict[tuple[str, int], Outcome],
) -> dict[str, Any]:
    outcomes = list(mine.values())
    counted = [o for o in outcomes if o.rounds is not None]
    rounds = sum(o.rounds or 0 for o in counted)
    return {
        "context": case.context,
        "temperature": case.sampling.temperature,
        "arm": arm,
        "runs": len(outcomes),
        "tokens": sum(len(o.tokens) for o in outcomes),
        "decode_rate": spread([o.decode_rate for o in outcomes]),
        "rate": spread([o.rate for o in outcomes]),
        "first_ms": spread([1000 * o.first for o in outcomes]),
        "memory_gb": max(o.memory for o in outcomes),
        "accept_len": sum(o.committed or 0 for o in counted) / rounds if rounds else None,
        "rounds": rounds if counted else None,
        **{name: _total(outcomes, name) for name in ("syncs", "forwards", "rows", "drafted")},
        **ratio(mine, plain),
    }


def _total(outcomes: Sequence[Outcome], name: str) -> int | None:
    values = [getattr(o, name) for o in outcomes]
    return None if None in values else sum(values)


def ratio(
    mine: dict[tuple[str, int], Outcome], plain: dict[tuple[str, int], Outcome]
) -> dict[str, Any]:
    """Decode rate as a multiple of plain's: geometric mean and quartiles over prompt and repeat.

    None, with the reason in `no_ratio`, unless every pair generated equally many tokens.
    `parted` counts pairs whose answers differ; greedy ones may only by near ties.
    """
    pairs = [(o, plain[key]) for key, o in mine.items()]
    unequal = sum(len(a.tokens) != len(b.tokens) for a, b in pairs)
    parted = sum(a.tokens != b.tokens for a, b in pairs)
    reason = None
    if unequal:
        reason = f"unequal work: {unequal} of {len(pairs)} answers differ in length"
    rates = [(a.decode_rate, b.decode_rate) for a, b in pairs]
    values = [a / b for a, b in rates if a and b]
    if reason is None and len(values) < len(pairs):
        reason = "an answer has only one token"
    if reason is not None:
        return {"ratio": None, "parted": parted, "no_ratio": reason}
    mean = math.exp(statistics.fmean(map(math.log, values)))
    low, high = _quartiles(values)
    return {
        "ratio": {"mean": mean, "low": low, "high": high},
        "parted": parted,
        "no_ratio": None,
    }


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Median and quartiles of what was measured."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    low, high = _quartiles(known)
    return {"median": statistics.median(known), "low": low, "high": high}


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    cuts = statistics.quantiles(values, n=4, method="inclusive")
    return cuts[0], cuts[2]


def compare(now: dict[str, Any], before: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of two reports side by side, those that both have; change in the decode rate."""
    old = {_place(row): row for row in before["rows"]}
    found = []
    for row in now["rows"]:
        other = old.get(_place(row))
        if other is None or not row["decode_rate"] or not other["decode_rate"]:
            continue
        new, past = row["decode_rate"], other["decode_rate"]
        found.append(
            {
                "context": row["context"],
                "temperature": row["temperature"],
                "arm": row["arm"],
                "before": past["median"],
                "now": new["median"],
                "change": new["median"] / past["median"] - 1.0,
                "apart": new["low"] > past["high"] or new["high"] < past["low"],
                "ratio_before": (other["ratio"] or {}).get("mean"),
                "ratio_now": (row["ratio"] or {}).get("mean"),
                "counts_equal": all(row[c] == other[c] for c in ("rounds", "syncs", "forwards")),
            }
        )
    return found


def differences(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """What of machine, versions, models and settings differs between two reports, one line each."""
    lines = []
    for part in ("machine", "target", "settings"):
        for key in sorted(set(now[part]) | set(before[part])):
            a, b = before[part].get(key), now[part].get(key)
            if a != b:
                lines.append(f"{part} {key}: {a} before, {b} now")
    for part in ("drafters", "sets"):
        a, b = ({d["name"]: d["sha256"][:16] for d in r[part]} for r in (before, now))
        if a != b:
            lines.append(f"{part}: {a} before, {b} now")
    return lines


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["context"], row["temperature"], row["arm"]
