"""The measurements as rows of a table and of the JSON file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

HEAD = ("name", "unit", "ours", "bare", "ratio", "spread", "target", "met")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A limit for the ratio or, with `absolute`, for the driver's figure."""

    limit: float
    at_least: bool = False
    absolute: bool = False

    def met(self, figure: float) -> bool:
        return figure >= self.limit if self.at_least else figure <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}{'' if self.absolute else ' x'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison. `bare` is None without a counterpart, `target` is None without a limit."""

    name: str
    unit: str
    ours: float
    bare: float | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None  # quartiles of the rounds, of the ratio or of the driver's figure
    target: Target | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        figure = self.ours if self.target.absolute else self.ratio
        return figure is not None and self.target.met(figure)

    def facts(self) -> dict[str, Any]:
        """Return the row of the JSON file."""
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": round(self.ours, 4),
            "bare": None if self.bare is None else round(self.bare, 4),
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "spread": self.spread and [round(one, 4) for one in self.spread],
            "target": str(self.target) if self.target else None,
            "met": self.met,
            "note": self.note,
        }


def compared(
    name: str, unit: str, ours: Sequence[float], bare: Sequence[float], *, target: Target | None = None, note: str = ""
) -> Row:
    """Make a row of interleaved rounds: median figures; median and quartiles of the ratios round by round."""
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    return Row(
        name=name,
        unit=unit,
        ours=statistics.median(ours),
        bare=statistics.median(bare),
        ratio=statistics.median(ratios),
        spread=quartiles(ratios),
        target=target,
        note=note,
    )


def alone(name: str, unit: str, figures: Sequence[float], *, target: Target | None = None, note: str = "") -> Row:
    """Make a row of repeated measurements without a counterpart."""
    spread = quartiles(figures)
    return Row(name=name, unit=unit, ours=statistics.median(figures), spread=spread, target=target, note=note)


def quartiles(figures: Sequence[float]) -> tuple[float, float] | None:
    if len(figures) < 2:
        return None
    low, _, high = statistics.quantiles(figures, n=4, method="inclusive")
    return low, high


def text(rows: Sequence[Row], *, other: str = "bare") -> str:
    """Write the rows as a table with aligned columns, and the notes below it. `other` heads a column."""
    lines = [tuple(other if cell == "bare" else cell for cell in HEAD), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    table = [
        "  ".join(_pad(cell, width, at) for at, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    notes = [f"  {row.name}: {row.note}" for row in rows if row.note]
    return "\n".join(line.rstrip() for line in [*table, *notes])


def _pad(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if HEAD[column] in ("ours", "bare", "ratio", "spread") else cell.ljust(width)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.unit,
        _number(row.ours),
        _number(row.bare),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        f"{_number(row.spread[0])}..{_number(row.spread[1])}" if row.spread else "",
        str(row.target or ""),
        {None: "", True: "yes", False: "NO"}[row.met],
    )


def _number(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:.0f}" if abs(figure) >= 1000 else f"{figure:.1f}" if abs(figure) >= 10 else f"{figure:.2f}"
