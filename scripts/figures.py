# SPDX-License-Identifier: GPL-2.0
"""What `make bench` measures, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from report import markdown


@dataclass(frozen=True)
class Figure:
    """Something that was measured of two, and what it has to be."""

    name: str
    unit: str
    rust: float
    other: float | None = None
    ratio_max: float | None = None
    """The bar: the ratio of the two may not be more."""
    ratio_min: float | None = None
    """The bar: the ratio of the two may not be less."""
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
        if self.ratio_max is not None:
            return self.ratio is not None and self.ratio <= self.ratio_max
        if self.ratio_min is not None:
            return self.ratio is not None and self.ratio >= self.ratio_min
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
        elif self.ratio_min is not None:
            bar = f"≥ {self.ratio_min:.2f}"
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
    names: tuple[str, str] = ("Rust", "C")
    """Which two are compared."""

    def markdown(self) -> str:
        """Return it in Markdown."""
        header = ["figure", *self.names, "ratio", "bar", ""]
        rows = [header, ["---", *["---:"] * 4, "---"], *(it.cells() for it in self.figures)]
        return _section(self.title, rows, self.notes)

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "title": self.title,
            "figures": [it.as_json() for it in self.figures],
            "notes": list(self.notes),
            "details": self.details,
        }


@dataclass(frozen=True)
class Times:
    """How long something takes under several conditions, step by step; there is no bar."""

    title: str
    times: Mapping[str, Mapping[str, float]]
    """In seconds, by condition and by step; under the first condition there are all steps."""
    notes: Sequence[str]

    figures: ClassVar[Sequence[Figure]] = ()

    def markdown(self) -> str:
        """Return it in Markdown."""
        rows = [["step, s", *self.times], ["---", *["---:"] * len(self.times)]]
        for name in next(iter(self.times.values())):
            rows.append([name, *(self._cell(of.get(name)) for of in self.times.values())])
        return _section(self.title, rows, self.notes)

    @staticmethod
    def _cell(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def _section(title: str, rows: Iterable[Sequence[str]], notes: Iterable[str]) -> str:
    """Return a table with its title and with what has to be known to read it."""
    listed = "".join(f"- {note}\n" for note in notes)
    return f"## {title}\n\n{markdown(rows)}\n{listed}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
