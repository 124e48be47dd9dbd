"""One self-contained HTML page: what was run, figures with their meaning, plots inlined."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from .table import arm_table, number

CAPTIONS = {
    "accept_length_by_set": "Accept length by data set: committed tokens per round, the bonus "
    "token included. At 1 (dotted) no draft is ever accepted.",
    "acceptance_by_position": "Left: the share of rounds that accepted the prefix up to a "
    "position. Right: the share that accepted a draft when all before it had been accepted "
    "(the paper's Figure 2).",
    "reliability": "Observed against predicted survival of the prefix, in 20 bins over all "
    "positions (the paper's Figure 6). On the dotted line the confidences are honest.",
    "survival_against_confidence": "Mean survival of the prefix by position: what the "
    "confidences promised, and what came.",
}
STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #666; --line: #ddd; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --soft: #a0a0a0; --line: #444; --paper: #1b1b1b; }
}
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; } h2 { font-size: 1.2rem; margin-top: 2.4rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 0.4rem; } .soft, figcaption { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.86rem; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tr:last-child td { font-weight: 600; }
table.plain tr:last-child td { font-weight: 400; } table.facts td { text-align: left; }
figure { margin: 1.2rem 0; background: #fff; border-radius: 6px; padding: 0.6rem; }
figure svg { max-width: 100%; height: auto; } figcaption { font-size: 0.86rem; color: #555; }
code { font-size: 0.88em; word-break: break-all; }
"""


def eval_page(report: dict[str, Any], plots: dict[str, str]) -> str:
    """The page of an eval run; `plots` maps a plot's name to its SVG text."""
    settings, target = report["settings"], report["target"]
    parts = [
        f"<h1>Speculative decoding of {escape(target['name'])}</h1>",
        f"<p class=soft>{report['prompts']} prompts, up to {settings['max_tokens']} tokens each, "
        f"temperature {settings['temperature']:g}, seed {settings['seed']}; "
        f"{escape(target['precision'])}; {escape(report['created'])}</p>",
        "<h2>In short</h2>",
        _html_table(*_overview(report), plain=True),
        *_plot_parts(plots, bool(report["paper"])),
        "<h2>By data set, domain and context</h2>",
        "<p>@k is the share of rounds that accepted the first k drafts, of those that verified "
        "as many.</p>",
    ]
    for arm in report["arms"]:
        paper = report["paper"].get(arm["drafter"])
        parts += [f"<h3>{escape(arm['name'])}</h3>", _html_table(*arm_table(arm, paper))]
    parts += _confidence_parts(report)
    parts += _head_parts(report)
    parts += _provenance(report)
    return (
        '<!doctype html>\n<html lang=en><head><meta charset="utf-8">'
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(target['name'])}: acceptance</title><style>{STYLE}</style></head>\n<body>"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _overview(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    head = ["", "accept len", "verify rate", "proposed", "rounds", "ECE", "AUROC", "tok/s"]
    rows = []
    for arm, time in zip(report["arms"], report["timing"], strict=True):
        found, group = arm["confidence"], arm["all"]
        rows.append(
            [
                arm["name"],
                number(group["accept_len"]),
                number(group["verify_rate"]),
                number(group["proposal"], 2),
                str(group["rounds"]),
                number(found["raw"]["ece"] if found else None),
                number(found["raw"]["auroc"] if found else None),
                number(time["tokens_per_second"], 1),
            ]
        )
    return head, rows


def _plot_parts(plots: dict[str, str], paper: bool) -> list[str]:
    if not plots:
        return ["<p class=soft>Install matplotlib (the extra <code>plots</code>) for plots.</p>"]
    more = {"accept_length_by_set": " Diamonds: the paper's Table 1."} if paper else {}
    return [
        f"<figure>{_inline(svg, name)}"
        f"<figcaption>{escape(CAPTIONS[name] + more.get(name, ''))}</figcaption></figure>"
        for name, svg in plots.items()
    ]


def _inline(svg: str, name: str) -> str:
    """The svg element alone, its ids made unique to the page."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    return re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)


def _confidence_parts(report: dict[str, Any]) -> list[str]:
    arms = [arm for arm in report["arms"] if arm["confidence"]]
    if not arms:
        return []
    head = ["", "position", "rounds", "ECE", "AUROC", "Brier", "predicted", "observed"]
    head += ["paper's ECE", "paper's AUROC"] if _calibrations(report) else []
    parts = [
        "<h2>Confidence</h2>",
        "<p>The confidences' product up to a position is a prediction that the prefix will be "
        "accepted. ECE (20 bins) says how far such predictions are from what came, AUROC how well "
        "they rank rounds, Brier both at once.</p>",
    ]
    for arm in arms:
        rows = [
            [
                which, str(p["position"] + 1), str(p["count"]), number(p["ece"]),
                number(p["auroc"]), number(p["brier"]), number(p["predicted"]),
                number(p["observed"]),
                *_paper_cells(report, arm, which, p["position"]),
            ]
            for which in ("raw", "calibrated")
            if arm["confidence"][which]
            for p in arm["confidence"][which]["positions"]
        ]  # fmt: skip
        parts += [f"<h3>{escape(arm['name'])}</h3>", _html_table(head, rows, plain=True)]
    return parts


def _calibrations(report: dict[str, Any]) -> dict[str, Any]:
    """Figure 6 by drafter, for those that it is about."""
    known = {name: paper.get("calibration") for name, paper in report["paper"].items()}
    return {name: figure for name, figure in known.items() if figure}


def _paper_cells(report: dict[str, Any], arm: dict[str, Any], which: str, k: int) -> list[str]:
    known = _calibrations(report)
    if not known:
        return []
    point = known.get(arm["drafter"], {}).get(str(k + 1), {})
    ece = point.get("ece" if which == "raw" else "ece_calibrated")
    return [number(ece), number(point.get("auroc"))]


def _head_parts(report: dict[str, Any]) -> list[str]:
    rows = [
        [c["drafter"], number(c["draft_ms"], 1), number(c["without_head_ms"], 1),
         "-" if c["share"] is None else f"{c['share']:.0%}"]
        for c in report["head_cost"]
    ]  # fmt: skip
    if not rows:
        return []
    head = ["", "draft (ms)", "without head (ms)", "head's share"]
    return ["<h2>What the sequential head costs</h2>", _html_table(head, rows, plain=True)]


def _provenance(report: dict[str, Any]) -> list[str]:
    facts = [["target", f"{report['target']['name']} {report['target']['sha256'][:16]}"]]
    facts += [["drafter", f"{d['name']} {d['sha256'][:16]}"] for d in report["drafters"]]
    facts += [
        ["data", f"{s['name']}: {s['prompts']} prompts of {s['source']} {s['sha256'][:16]}"]
        for s in report["sets"]
    ]
    facts += [[key, str(value)] for key, value in report["machine"].items()]
    cells = "".join(
        f"<tr><td>{escape(key)}</td><td><code>{escape(value)}</code></td></tr>"
        for key, value in facts
    )
    return [
        "<h2>What was run</h2>",
        f"<div class=wide><table class='plain facts'>{cells}</table></div>",
    ]


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]], plain: bool = False) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    kind = " class=plain" if plain else ""
    return f"<div class=wide><table{kind}><tr>{top}</tr>{body}</table></div>"


def read_svgs(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The SVG text of plots that were written into a folder."""
    return {name: (folder / f"{name}.svg").read_text(encoding="utf-8") for name in names}
