# SPDX-License-Identifier: GPL-2.0
"""What `make bench` measures, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from report import markdown

_HEADER = ("figure", "Rust", "C", "ratio", "bar", "")


@dataclass(frozen=True)
class Figure:
    """Something that was measured of two, and what the ratio of them may be at most."""

    name: str
    unit: str
    rust: float
    other: float | None = None
    ratio_max: float | None = None
    """The bar: the ratio of the two may not be more."""
    value_max: float | None = None
    """The bar: Rust's own may not be more."""

    @property
    def ratio(self) -> float | None:
        """Rust's, of the other's."""
        return self.rust / self.other if self.other else None

    @property
    def passed(self) -> bool | None:
        """Whether it is within the bar; nothing, if there is none."""
        if self.value_max is not None:
            return self.rust <= self.value_max
        if self.ratio_max is not None and self.ratio is not None:
            return self.ratio <= self.ratio_max
        return None

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "ratio": self.ratio, "passed": self.passed}

    def cells(self) -> list[str]:
        """Return its cells of the table."""
        bar = ""
        if self.value_max is not None:
            bar = f"≤ {_number(self.value_max)}"
        elif self.ratio_max is not None:
            bar = f"≤ {self.ratio_max:.2f}"
        return [
            f"{self.name}, {self.unit}",
            _number(self.rust),
            "" if self.other is None else _number(self.other),
            "" if self.ratio is None else f"{self.ratio:.3f}",
            bar,
            {True: "pass", False: "FAIL", None: ""}[self.passed],
        ]


@dataclass(frozen=True)
class Part:
    """A part of the comparison: its figures, and what has to be known to read them."""

    title: str
    figures: Sequence[Figure]
    notes: Sequence[str]
    details: dict[str, Any]

    def markdown(self) -> str:
        """Return it in Markdown."""
        rows = [list(_HEADER), ["---", *["---:"] * 4, "---"], *(it.cells() for it in self.figures)]
        table = markdown(rows)
        notes = "".join(f"- {note}\n" for note in self.notes)
        return f"## {self.title}\n\n{table}\n{notes}"

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "title": self.title,
            "figures": [it.as_json() for it in self.figures],
            "notes": list(self.notes),
            "details": self.details,
        }


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
