"""`check`'s results as a screen of text."""

from __future__ import annotations

from typing import Any

from dspark_mlx.measure.lossless import FAULTS, TIE

from .table import number, table

HOLDS = {True: "the output is the target's own", False: "THE OUTPUT IS NOT THE TARGET'S OWN"}


def greedy_text(target: dict[str, Any], found: dict[str, Any]) -> str:
    """Each difference in a line, then a row per arm, then the verdict."""
    lines = [_difference(record) for record in found["differences"]]
    head = ["", "prompts", "tokens", "equal", "near ties", "faults", "differing"]
    rows = [
        [
            row["arm"], str(row["prompts"]), str(row["tokens"]), str(row["equal"]),
            str(row["near_ties"]), str(row["faults"]),
            "-" if row["rate"] is None else f"{row['rate']:.1%}",
        ]
        for row in found["arms"]
    ]  # fmt: skip
    settings = found["settings"]
    exact = ", verified one row at a time" if settings["row_exact"] else ""
    title = (
        f"{target['name']}, {target['precision']}, greedy, up to {settings['max_tokens']} "
        f"tokens{exact}"
    )
    lines += [title, table(head, rows)]
    holds = HOLDS[found["holds"]]
    if found["holds"] and found["differences"]:
        holds += ", up to near ties that rounding explains"
    return "\n".join([*lines, holds])


def _difference(record: dict[str, Any]) -> str:
    d, name = record["difference"], f"{record['set']} {record['index']}, {record['arm']}"
    place = f"{name}: token {d['at']} (position {d['position']})"
    words = f"plain {d['plain_text']!r}, speculative {d['speculative_text']!r}"
    if d["plain_margin"] is None:
        return f"{place}: {words}; FAULT: {FAULTS[d['verdict']]}"
    margins = (
        f"margins {d['plain_margin']:.3g} and {d['speculative_margin']:.3g}, passes of "
        f"{d['width']} rows round by up to {d['rounding']:.3g}"
    )
    why = TIE if d["verdict"] == TIE else f"FAULT: {FAULTS[d['verdict']]}"
    return f"{place}: {words}; {margins}: {why}"


def sampled_text(target: dict[str, Any], found: dict[str, Any]) -> str:
    """A row per arm, then the verdict."""
    s = found["settings"]
    title = (
        f"{target['name']}, {target['precision']}, temperature {s['temperature']:g}, "
        f"{s['samples']} samples of {s['max_tokens']} tokens per prompt, seed {s['seed']}"
    )
    head = ["", "prompts", "tokens", "impossible", "distance", "p-value", "passes"]
    rows = [
        [
            row["arm"], str(row["prompts"]), str(row["numbers"]), str(row["impossible"]),
            number(row["distance"], 4), f"{row['p_value']:.3g}", "yes" if row["passes"] else "NO",
        ]
        for row in found["arms"]
    ]  # fmt: skip
    return "\n".join([title, table(head, rows), HOLDS[found["holds"]]])
