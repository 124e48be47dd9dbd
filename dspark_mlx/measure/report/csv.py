"""Results as CSV: one row per arm and group, and one per draft position."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

KINDS = ("sets", "domains", "contexts")
COLUMNS = (
    "prompts", "rounds", "tokens", "proposed", "verified", "accept_len", "verify_rate", "proposal",
)  # fmt: skip


def summary_csv(report: dict[str, Any]) -> str:
    """arm, kind of group, group, counts and ratios."""
    rows = [
        [arm["name"], kind, name, *(group.get(c) for c in COLUMNS)]
        for arm in report["arms"]
        for kind, name, group in _groups(arm)
    ]
    return _text(["arm", "kind", "group", *COLUMNS], rows)


def positions_csv(report: dict[str, Any]) -> str:
    """arm, group, draft position from 1, counts, marginal and conditional acceptance."""
    head = ["arm", "kind", "group", "position", "judged", "accepted", "marginal", "conditional"]
    rows = [
        [arm["name"], kind, name, k + 1, *(group[c][k] for c in head[4:])]
        for arm in report["arms"]
        for kind, name, group in _groups(arm)
        for k in range(len(group["judged"]))
    ]
    return _text(head, rows)


def confidence_csv(report: dict[str, Any]) -> str:
    """arm, raw or calibrated, position from 1, ECE, AUROC, Brier, mean prediction and outcome."""
    columns = ("count", "ece", "auroc", "brier", "predicted", "observed")
    rows = [
        [arm["name"], which, p["position"] + 1, *(p[c] for c in columns)]
        for arm in report["arms"]
        if arm["confidence"]
        for which in ("raw", "calibrated")
        if arm["confidence"][which]
        for p in arm["confidence"][which]["positions"]
    ]
    return _text(["arm", "confidence", "position", *columns], rows)


def _groups(arm: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for kind in KINDS:
        for name, group in arm[kind].items():
            yield kind, name, group
    yield "all", "all", arm["all"]


def _text(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return out.getvalue()
