"""From records to the figures of a report: by arm, and within it by set, domain and context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspark_mlx.calibration import Scale

from .arms import Arm
from .confidence import confidence_metrics
from .metrics import Acceptance, RoundRecord, bucket_of, bucket_order, of_columns

Scales = Mapping[str, Sequence[Scale]]  # by drafter, one per draft position
Row = tuple[dict[str, Any], RoundRecord]


def results(
    records: Sequence[dict[str, Any]],
    arms: Sequence[Arm],
    scales: Scales | None = None,
) -> list[dict[str, Any]]:
    """One entry per arm, JSON-ready; without times, so that the same run gives the same."""
    return [
        _of_arm(
            arm, [r for r in records if r["arm"] == arm.name], (scales or {}).get(arm.drafter.name)
        )
        for arm in arms
    ]


def _of_arm(
    arm: Arm, records: Sequence[dict[str, Any]], scales: Sequence[Scale] | None
) -> dict[str, Any]:
    rows = [(record, one) for record in records for one in of_columns(record["rounds"])]
    rounds = [one for _, one in rows]
    return {
        "name": arm.name,
        "drafter": arm.drafter.name,
        "cutoff": arm.cutoff,
        "block": arm.block,
        "head": arm.head,
        "all": Acceptance.of(rounds).to_dict() | _answers(records),
        "sets": _groups(records, rows, lambda record, _: record["set"]),
        "domains": _groups(records, rows, lambda record, _: record["domain"]),
        "contexts": _by_context(rows),
        "confidence": _confidence(arm, records, rounds, scales),
    }


def _groups(
    records: Sequence[dict[str, Any]],
    rows: Sequence[Row],
    name: Callable[[dict[str, Any], RoundRecord | None], str],
) -> dict[str, Any]:
    names = dict.fromkeys(name(record, None) for record in records)
    return {
        one: Acceptance.of(r for record, r in rows if name(record, r) == one).to_dict()
        | _answers([record for record in records if name(record, None) == one])
        for one in names
    }


def _answers(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "prompts": len(records),
        "prompt_tokens": sum(r["prompt_tokens"] for r in records),
        "output_tokens": sum(len(r["tokens"]) for r in records),
        "stopped": sum(r["finish_reason"] == "stop" for r in records),
    }


def _by_context(rows: Sequence[Row]) -> dict[str, Any]:
    groups: dict[str, list[RoundRecord]] = {}
    for _, one in rows:
        groups.setdefault(bucket_of(one.position), []).append(one)
    return {
        name: Acceptance.of(groups[name]).to_dict() for name in sorted(groups, key=bucket_order)
    }


def _confidence(
    arm: Arm,
    records: Sequence[dict[str, Any]],
    rounds: Sequence[RoundRecord],
    scales: Sequence[Scale] | None,
) -> dict[str, Any] | None:
    """Only where everything drafted was verified: a cut hides how the rest would have fared."""
    raw = confidence_metrics(rounds) if arm.cutoff == "full" else None
    if raw is None:
        return None
    by_set: dict[str, list[RoundRecord]] = {}
    for record in records:
        by_set.setdefault(record["set"], []).extend(of_columns(record["rounds"]))
    sets = {name: confidence_metrics(some) for name, some in by_set.items()}
    calibrated = confidence_metrics(rounds, scales) if scales else None
    return {
        "raw": raw.to_dict(),
        "calibrated": calibrated.to_dict() if calibrated else None,
        "scales": [vars(scale) for scale in scales] if scales else None,
        "sets": {
            name: {k: getattr(c, k) for k in ("ece", "auroc", "brier")}
            for name, c in sets.items()
            if c is not None
        },
    }


def timing(records: Sequence[dict[str, Any]], arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Seconds as they were measured along the way; `bench` measures speed with more care."""
    rows = []
    for arm in arms:
        mine = [r for r in records if r["arm"] == arm.name]
        decode = sum(sum(r["rounds"]["seconds"]) for r in mine)
        tokens = sum(sum(r["rounds"]["accept_len"]) for r in mine)
        rows.append(
            {
                "name": arm.name,
                "prefill_seconds": sum(r["prefill_seconds"] for r in mine),
                "decode_seconds": decode,
                "tokens_per_second": tokens / decode if decode else None,
            }
        )
    return rows
