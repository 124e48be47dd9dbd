"""Plain-text tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to fit: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        return "  ".join(cells).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *map(line, rows)])


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def eval_text(report: dict[str, Any]) -> str:
    """One screen: accept length and acceptance by set for every arm, then confidence."""
    settings = report["settings"]
    lines = [
        f"{report['target']['name']}: {report['prompts']} prompts, up to "
        f"{settings['max_tokens']} tokens, temperature {settings['temperature']:g}, "
        f"seed {settings['seed']}",
    ]
    for arm in report["arms"]:
        lines += ["", arm["name"], table(*arm_table(arm, report["paper"].get(arm["drafter"])))]
        lines += _confidence_lines(arm)
    for cost in report["head_cost"]:
        lines += ["", _head_line(cost)]
    return "\n".join(lines)


def arm_table(
    arm: dict[str, Any], paper: dict[str, Any] | None
) -> tuple[list[str], list[list[str]]]:
    """Head and rows: each set, each domain where sets share one, each context bucket, and all."""
    known = paper["accept_len"] if paper else {}
    width = max(len(group["marginal"]) for group in arm["sets"].values())
    head = ["", "prompts", "rounds", "accept len", *(["paper"] if known else []), "verify rate"]
    head += ["proposed", *(f"@{k + 1}" for k in range(width))]
    rows = []
    for name, group in _named_groups(arm):
        cells = [name, str(group.get("prompts", "")), str(group["rounds"])]
        cells.append(number(group["accept_len"]))
        if known:
            cells.append(number(known.get(name), 2))
        cells += [number(group["verify_rate"]), number(group["proposal"], 2)]
        shares = [*group["marginal"], *[None] * width][:width]
        rows.append(cells + [number(share, 2) for share in shares])
    return head, rows


def _named_groups(arm: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    groups = list(arm["sets"].items())
    if set(arm["domains"]) != set(arm["sets"]):
        groups += [(f"{name} (domain)", group) for name, group in arm["domains"].items()]
    if len(arm["contexts"]) > 1:
        groups += [(f"context {name}", group) for name, group in arm["contexts"].items()]
    return [*groups, ("all", arm["all"])]


def _confidence_lines(arm: dict[str, Any]) -> list[str]:
    found = arm["confidence"]
    if found is None:
        return []
    return [
        f"confidence ({name}): ECE {one['ece']:.3f}, AUROC {number(one['auroc'])}, "
        f"Brier {one['brier']:.3f}, predicted {one['predicted']:.3f}, "
        f"observed {one['observed']:.3f}"
        for name in ("raw", "calibrated")
        if (one := found[name]) is not None
    ]


def _head_line(cost: dict[str, Any]) -> str:
    if cost["share"] is None:
        return f"{cost['drafter']}: too few rounds to time the sequential head"
    return (
        f"{cost['drafter']}: a block is drafted in {cost['draft_ms']:.1f} ms, without the "
        f"sequential head in {cost['without_head_ms']:.1f}: the head is {cost['share']:.0%} of it"
    )
