"""`bench`'s results as a screen of text."""

from __future__ import annotations

from typing import Any

from .table import number, table


def bench_text(report: dict[str, Any]) -> str:
    """A table per context and temperature, then what should not be overlooked."""
    settings, machine = report["settings"], report["machine"]
    lines = [
        f"{report['target']['name']}, {report['target']['precision']}; {machine['processor']}, "
        f"mlx {machine['mlx']}, mlx-lm {machine['mlx-lm']}; {settings['max_tokens']} tokens, "
        f"{settings['prompts']} prompts, {settings['repeats']} repeat(s), interleaved",
    ]
    for case in dict.fromkeys((r["context"], r["temperature"]) for r in report["rows"]):
        rows = [r for r in report["rows"] if (r["context"], r["temperature"]) == case]
        lines += ["", f"{case[0]}, temperature {case[1]:g}", table(*_table(rows))]
        lines += [f"{r['arm']}: no ratio, {r['no_ratio']}" for r in rows if r["no_ratio"]]
        lines += [
            f"{r['arm']}: {r['parted']} of {r['runs']} answers part from plain decoding's"
            for r in rows
            if r["parted"] and case[1] == 0
        ]
        lines += [
            f"{r['arm']}: SLOWER than plain decoding here"
            for r in rows
            if r["ratio"] and r["ratio"]["high"] < 1.0
        ]
    for name, split in report["round_split"].items():
        parts = ", ".join(f"{k.removesuffix('_ms')} {v:.1f} ms" for k, v in split.items())
        lines += ["", f"{name}: a profiled round takes {parts}"]
    if "compared" in report:
        lines += compared_lines(report["compared"])
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    head = [
        "", "tok/s", "(quartiles)", "ratio", "(quartiles)", "end to end", "first ms", "accept len",
        "rounds", "syncs", "forwards", "peak GB",
    ]  # fmt: skip
    return head, [
        [
            r["arm"],
            *_spread(r["decode_rate"], "median", 2),
            *_spread(r["ratio"], "mean", 3),
            number((r["rate"] or {}).get("median"), 2),
            number((r["first_ms"] or {}).get("median"), 0),
            number(r["accept_len"]),
            *("-" if r[name] is None else str(r[name]) for name in ("rounds", "syncs", "forwards")),
            number(r["memory_gb"], 2),
        ]
        for r in rows
    ]


def _spread(value: dict[str, float] | None, middle: str, digits: int) -> tuple[str, str]:
    if value is None:
        return "-", ""
    return (
        f"{value[middle]:.{digits}f}",
        f"{value['low']:.{digits}f}..{value['high']:.{digits}f}",
    )


def compared_lines(compared: dict[str, Any]) -> list[str]:
    """What changed since an earlier report."""
    head = ["", "before", "now", "change", "", "ratio before", "now", "counts"]
    body = [
        [
            f"{r['arm']} ({r['context']}, temperature {r['temperature']:g})",
            number(r["before"], 2),
            number(r["now"], 2),
            f"{r['change']:+.1%}",
            "apart" if r["apart"] else "within spread",
            number(r["ratio_before"]),
            number(r["ratio_now"]),
            "equal" if r["counts_equal"] else "DIFFER",
        ]
        for r in compared["rows"]
    ]
    lines = [
        "",
        f"against {compared['with']} (tok/s while decoding; apart: quartiles do not overlap)",
    ]
    lines.append(table(head, body) if body else "no row is in both")
    return lines + [f"differs: {line}" for line in compared["differences"]]
