"""`dspark-mlx models`: the table of names, and what of it is on this disk."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dspark_mlx import hub, paths
from dspark_mlx.command import Parser
from dspark_mlx.registry import MODELS, Entry


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = Parser(prog="dspark-mlx models", description="List the known models.")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    rows = [describe(name, entry) for name, entry in MODELS.items()]
    if args.json:
        print(json.dumps({"data_folder": str(paths.home()), "models": rows}))
        return 0
    for row in rows:
        print(
            f"{row['name']}\n  target   {row['target']} ({row['precision']}), {row['target_disk']}"
        )
        print(f"  drafter  {row['drafter']}, {row['drafter_disk']}")
    print(f"data folder: {paths.home()}")
    return 0


def describe(name: str, entry: Entry) -> dict[str, Any]:
    """One row of the table, JSON-ready."""
    target = entry.built_in_folder() if entry.built_in_folder else hub.cached(entry.target)
    drafter = entry.built_in_drafter or hub.cached(entry.drafter)
    return {
        "name": name,
        "target": entry.target,
        "precision": entry.precision,
        "drafter": entry.drafter,
        "target_disk": _on_disk(target),
        "drafter_disk": _on_disk(drafter),
    }


def _on_disk(folder: Path | None) -> str:
    if folder is None or not folder.is_dir():
        return "not on disk"
    size = sum(p.stat().st_size for p in folder.iterdir() if p.is_file())
    state = "on disk" if hub.complete(folder) else "partly on disk"
    return f"{state} ({size / 1e6:,.1f} MB)"
