"""A report of an `eval` run: assembled as one JSON-ready dict, written in every form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dspark_mlx.atomic import new_folder
from dspark_mlx.measure.arms import Arm
from dspark_mlx.measure.datasets import DataSet
from dspark_mlx.measure.identity import machine
from dspark_mlx.measure.models import Models
from dspark_mlx.measure.paper import figures
from dspark_mlx.measure.results import Scales, results, timing
from dspark_mlx.measure.store import write_text

from . import csv, html, plots

SCHEMA = 1


def build(
    models: Models,
    sets: Sequence[DataSet],
    arms: Sequence[Arm],
    settings: dict[str, Any],
    records: Sequence[dict[str, Any]],
    scales: Scales,
    head_cost: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Everything that was found. `arms`, `sets` and `settings` hold no time and no machine."""
    papers = {d.name: figures(d.source) for d in models.drafters}
    return {
        "schema": SCHEMA,
        "command": "eval",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "target": models.to_dict(),
        "drafters": [
            {"name": d.name, "source": d.source, "sha256": d.sha256} for d in models.drafters
        ],
        "sets": [
            {"name": s.name, "source": s.source, "sha256": s.sha256, "prompts": len(s.examples)}
            for s in sets
        ],
        "settings": settings,
        "prompts": len(records) // len(arms),
        "arms": results(records, arms, scales),
        "timing": timing(records, arms),
        "head_cost": list(head_cost),
        "paper": {name: paper for name, paper in papers.items() if paper},
    }


def write(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write report.json, CSV files, plots and report.html; the paths, the page first."""
    svgs: dict[str, str] = {}
    if plots.available():
        with new_folder(folder / "plots", overwrite=True) as work:
            svgs = html.read_svgs(work, plots.write_plots(report, work))
    files = {
        "report.html": html.eval_page(report, svgs),
        "report.json": json.dumps(report, indent=1) + "\n",
        "summary.csv": csv.summary_csv(report),
        "positions.csv": csv.positions_csv(report),
        "confidence.csv": csv.confidence_csv(report),
    }
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files] + ([folder / "plots"] if svgs else [])
