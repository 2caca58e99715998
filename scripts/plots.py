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

# So that of two lines in the same place both are seen.
_WIDTHS = (4.0, 1.5)


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
    figure, axes = _subplots(1)
    for name, measured in details.items():
        axes[0].step(*_cumulated(measured["times"]), where="post", label=name)
    axes[0].set_xscale("log")
    axes[0].set_xlabel("latency of SEND with 8 bytes, one way, us")
    axes[0].set_ylabel("% of messages")
    axes[0].set_ylim(0, 100)
    _save(figure, axes, target)


def growth(details: dict[str, Any], target: Path) -> None:
    """Draw what each device and each queue pair costs, by how many there are."""
    kinds = ("device", "queue pair")
    figure, axes = _subplots(len(kinds))
    for kind, axis in zip(kinds, axes, strict=True):
        for (name, series), width in zip(details.items(), _WIDTHS, strict=True):
            for what, style in (("taken", "-"), ("removed", "--")):
                values = series[f"{kind}, {what}"]
                axis.plot(series[kind], values, style, lw=width, label=f"{name}, {what}")
        axis.set_xscale("log", base=2)
        axis.set_xticks(series[kind], labels=[f"{number:,}" for number in series[kind]])
        axis.set_xlabel(f"{kind}s")
        axis.set_ylabel("instructions for each one more")
        axis.set_ylim(bottom=0)
    _save(figure, axes, target)


def _subplots(count: int) -> tuple[Any, Sequence[Any]]:
    figure, axes = pyplot.subplots(1, count, figsize=_SIZE, layout="constrained", squeeze=False)
    return figure, list(axes[0])


def _save(figure: Any, axes: Sequence[Any], target: Path) -> None:
    for axis in axes:
        axis.grid(visible=True, which="both", alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(target, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    text = target.read_text()
    # In front of it there is only the version of XML.
    licence = "?>\n<!-- SPDX-License-Identifier: GPL-2.0 -->\n"
    target.write_text(text.replace("?>\n", licence, 1))
