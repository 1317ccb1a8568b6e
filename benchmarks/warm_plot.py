"""`python -m benchmarks.warm_plot RESULTS.json PICTURE.png`: where the time of a start goes, cold and warm."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.warm import NAME, PARTS

COLORS = ("#6b7280", "#c4452d", "#b07d12", "#0b6bcb")


def parts_in(findings: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The seconds of each part, by case."""
    found: dict[str, dict[str, float]] = {}
    for finding in findings:
        part = str(finding["what"]).partition(",")[0]
        if finding["benchmark"] == NAME and part in PARTS:
            found.setdefault(str(finding["case"]), {})[part] = float(finding["value"])
    return found


def draw(parts: Mapping[str, Mapping[str, float]], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure: Any = Figure(figsize=(7.5, 2.2), layout="constrained")
    axes = figure.subplots()
    for at, (_case, seconds) in enumerate(parts.items()):
        left = 0.0
        for part, color in zip(PARTS, COLORS, strict=True):
            axes.barh(at, seconds[part], 0.7, left=left, color=color, label=part if at == 0 else None)
            left += seconds[part]
        axes.annotate(f"{left:.2f} s", (left, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(parts)), list(parts), fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel="time of the worker that was last (s)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(path, dpi=130, facecolor="white", metadata={"Software": None})


if __name__ == "__main__":
    draw(parts_in(json.loads(Path(sys.argv[1]).read_text())["findings"]), Path(sys.argv[2]))
