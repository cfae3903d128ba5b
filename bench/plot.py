"""A plot of the ratios as bars on a logarithmic axis, each with its goal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.report import Row

COLOURS = {True: "#2e7d32", False: "#c62828", None: "#78909c"}
ROW_INCHES = 0.32
DPI = 120


def draw(rows: Sequence[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = [(row, row.ratio) for row in rows if row.ratio is not None][::-1]
    figure, axes = pyplot.subplots(figsize=(11, 1.6 + ROW_INCHES * len(shown)))
    for position, (row, ratio) in enumerate(shown):
        axes.barh(position, ratio - 1, left=1, color=COLOURS[row.met], height=0.7)
        if row.goal is not None:
            axes.plot([row.goal, row.goal], [position - 0.45, position + 0.45], color="black", linewidth=2)
        axes.annotate(f"{ratio:.2f}", (ratio, position), xytext=(4 if ratio >= 1 else -4, 0), textcoords="offset points",
                      va="center", ha="left" if ratio >= 1 else "right", fontsize=8,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.margins(x=0.12)
    better = {True: "more is better", False: "less is better"}
    names = [
        f"{row.line} · {row.figure.title} · {row.against} ({better[row.figure.more_is_better]})" for row, _ in shown
    ]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    ticks = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in ticks if low <= tick <= high], [f"{t:g} ×" for t in ticks if low <= t <= high])
    axes.minorticks_off()
    axes.set_title("Headrace in proportion to the others, same load, same disk, one interleaved run")
    keys = [
        Patch(color=COLOURS[met], label=label)
        for met, label in ((True, "goal met"), (False, "goal missed"), (None, "no goal"))
    ]
    axes.legend(handles=[*keys, Line2D([0], [0], color="black", linewidth=2, label="goal")], fontsize=8, loc="best")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)
