# SPDX-License-Identifier: GPL-2.0
"""Draws what `make bench` has measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

# As text, in whichever font there is, and the same for the same figures.
matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "krdma_smoke"})

from matplotlib import pyplot  # noqa: E402 - it looks at what is set above

_SIZE = (7.0, 3.5)


def _cumulated(times: Sequence[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """Return times, and the share of all, in percent, that are not longer; few enough to draw."""
    total = sum(count for _, count in times)
    shown: dict[float, float] = {}
    seen = 0
    for time, count in sorted(times):
        seen += count
        # Three digits are finer than a pixel.
        shown[float(f"{time:.3g}")] = 100 * seen / total
    return list(shown), list(shown.values())


def latencies(details: dict[str, Any], target: Path) -> None:
    """Draw how many latencies of each side are below what."""
    figure, axes = pyplot.subplots(figsize=_SIZE, layout="constrained")
    for name, measured in details.items():
        axes.step(*_cumulated(measured["times"]), where="post", label=name)
    axes.set_xscale("log")
    axes.set_xlabel("latency of SEND with 8 bytes, one way, us")
    axes.set_ylabel("% of messages")
    axes.set_ylim(0, 100)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(target, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    text = target.read_text()
    target.write_text(text.replace("<svg ", "<!-- SPDX-License-Identifier: GPL-2.0 -->\n<svg ", 1))
