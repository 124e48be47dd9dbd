"""The report's plots, PNG and SVG (needs the extra `plots`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark_mlx.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2563a8", "#d1603d", "#3d8f5f", "#7d5ba6", "#b8892b", "#4aa3a2", "#a8325e", "#5c5c5c")
INK, GRID = "#333333", "#dddddd"
MOST_PANELS = 6
PAPER_STYLES = ("--", "-.", ":")


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def write_plots(report: dict[str, Any], folder: Path) -> list[str]:
    """Write every plot that the report has figures for; the names, without suffix.

    Raises OptionError without matplotlib.
    """
    if not available():
        raise OptionError("plots need matplotlib: pip install 'matplotlib' (the extra `plots`)")
    from matplotlib import rc_context

    folder.mkdir(parents=True, exist_ok=True)
    names = []
    with rc_context({"svg.hashsalt": "dspark-mlx", "font.size": 10, "svg.fonttype": "none"}):
        for name, draw in PLOTS.items():
            figure = draw(report)
            if figure is None:
                continue
            figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
            names.append(name)
    return names


def _figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    columns = 2 if panels == 4 else min(panels, 3)
    lines = -(-panels // columns)
    figure = Figure(figsize=(width, height * lines), layout="constrained")
    axes = [figure.add_subplot(lines, columns, k + 1) for k in range(panels)]
    for one in axes:
        one.grid(color=GRID, linewidth=0.6)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(colors=INK)
    return figure, axes


def acceptance_by_position(report: dict[str, Any]) -> Figure:
    """Marginal and conditional acceptance against the draft position, a line per arm."""
    from matplotlib.ticker import MaxNLocator

    figure, (left, right) = _figure(9, 3.8, 2)
    for axis, which, title in (
        (left, "marginal", "prefix accepted (marginal)"),
        (right, "conditional", "accepted, given all before (conditional)"),
    ):
        for k, arm in enumerate(report["arms"]):
            values = arm["all"][which]
            axis.plot(
                range(1, len(values) + 1), [_nan(v) for v in values], marker="o", markersize=4,
                color=COLOURS[k % len(COLOURS)], label=arm["name"],
            )  # fmt: skip
        axis.set(xlabel="draft position", ylim=(0, 1.02), title=title)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for paper in report["paper"].values():
        for k, (domain, values) in enumerate(paper.get("conditional", {}).items()):
            style = PAPER_STYLES[k % len(PAPER_STYLES)]
            places = range(1, len(values) + 1)
            right.plot(places, values, style, color=INK, linewidth=1, label=f"paper, {domain}")
    left.set_ylabel("share of rounds")
    _legend(figure, right, len(report["arms"]))
    return figure


def accept_length_by_set(report: dict[str, Any]) -> Figure:
    """Accept length by data set, a bar per arm, with the paper's figures as diamonds."""
    sets = list(report["arms"][0]["sets"])
    arms = report["arms"]
    figure, [axis] = _figure(max(5.5, 1.1 * len(sets) * (0.6 + 0.25 * len(arms))), 3.8)
    width = 0.8 / len(arms)
    for k, arm in enumerate(arms):
        places = [i + (k - (len(arms) - 1) / 2) * width for i in range(len(sets))]
        values = [arm["sets"][name]["accept_len"] or 0.0 for name in sets]
        bars = axis.bar(
            places, values, width * 0.92, color=COLOURS[k % len(COLOURS)], label=arm["name"]
        )
        if len(arms) <= 4:
            axis.bar_label(bars, fmt="%.2f", fontsize=7, padding=1)
        known = (report["paper"].get(arm["drafter"]) or {}).get("accept_len", {})
        marks = [(x, known[name]) for x, name in zip(places, sets, strict=True) if name in known]
        if marks and arm["head"] and arm["cutoff"] == "full":
            axis.plot(*zip(*marks, strict=True), "D", color=INK, markersize=5, label="paper")
    axis.set_xticks(range(len(sets)), sets)
    axis.grid(visible=False, axis="x")
    axis.set(ylabel="accept length (tokens per round)")
    axis.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    _legend(figure, axis, len(arms))
    return figure


def reliability(report: dict[str, Any]) -> Figure | None:
    """Observed against predicted survival of the prefix, raw and calibrated, a panel per arm."""
    arms = [arm for arm in report["arms"] if arm["confidence"]][:MOST_PANELS]
    if not arms:
        return None
    figure, axes = _figure(min(3.6 * len(arms) + 0.6, 11), 3.7, len(arms))
    for axis, arm in zip(axes, arms, strict=True):
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
        for which, colour in (("raw", COLOURS[0]), ("calibrated", COLOURS[1])):
            if (one := arm["confidence"][which]) is None:
                continue
            points = _pooled(one)
            axis.plot(
                [p for p, _, _ in points], [y for _, y, _ in points], marker="o", markersize=4,
                color=colour, label=f"{which}, ECE {one['ece']:.3f}",
            )  # fmt: skip
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="predicted survival")
        axis.set_title(arm["name"], fontsize=9)
        axis.legend(fontsize=8, loc="upper left", frameon=False)
    axes[0].set_ylabel("observed survival")
    return figure


def _pooled(one: dict[str, Any]) -> list[tuple[float, float, int]]:
    """Reliability points of all positions together: bins of the same range are merged."""
    sums: dict[float, list[float]] = {}
    for position in one["positions"]:
        for b in position["bins"]:
            row = sums.setdefault(b["low"], [0.0, 0.0, 0.0])
            for i, value in enumerate((b["predicted"], b["observed"], 1.0)):
                row[i] += value * b["count"]
    return [(p / n, y / n, int(n)) for _, (p, y, n) in sorted(sums.items())]


def survival_against_confidence(report: dict[str, Any]) -> Figure | None:
    """By draft position: what the confidences promised, and what came."""
    from matplotlib.ticker import MaxNLocator

    arms = [arm for arm in report["arms"] if arm["confidence"]][:MOST_PANELS]
    if not arms:
        return None
    figure, axes = _figure(min(3.6 * len(arms) + 0.6, 11), 3.6, len(arms))
    for axis, arm in zip(axes, arms, strict=True):
        raw, calibrated = arm["confidence"]["raw"], arm["confidence"]["calibrated"]
        places = [p["position"] + 1 for p in raw["positions"]]
        lines = [
            ("observed", raw, "observed", INK, "-"),
            ("predicted", raw, "predicted", COLOURS[0], "--"),
        ]
        if calibrated:
            lines.append(("predicted, calibrated", calibrated, "predicted", COLOURS[1], "--"))
        for label, one, key, colour, style in lines:
            values = [p[key] for p in one["positions"]]
            axis.plot(places, values, style, marker="o", markersize=4, color=colour, label=label)
        axis.set(ylim=(0, 1.02), xlabel="draft position")
        axis.set_title(arm["name"], fontsize=9)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend(fontsize=8, frameon=False)
    axes[0].set_ylabel("survival of the prefix")
    return figure


def _legend(figure: Figure, axis: Axes, arms: int) -> None:
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        list(unique.values()), list(unique), loc="outside lower center", ncols=min(3, arms + 1),
        fontsize=8, frameon=False,
    )  # fmt: skip


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value


PLOTS: dict[str, Callable[[dict[str, Any]], Figure | None]] = {
    "acceptance_by_position": acceptance_by_position,
    "accept_length_by_set": accept_length_by_set,
    "reliability": reliability,
    "survival_against_confidence": survival_against_confidence,
}
