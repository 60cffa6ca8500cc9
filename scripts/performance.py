"""Print docs/performance.md: bench/performance.md with the kept figures of each case in place of `{{case}}`."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from bench import kept  # noqa: E402  (the benchmarks are no distribution)

MARKER = re.compile(r"^\{\{(.+)\}\}$", re.MULTILINE)
BAR = 40  # characters of the longest bar
WIDTH = 118
NONE = "Not measured yet."


def main() -> None:
    measured = kept.load()
    page = (ROOT / "bench/performance.md").read_text()
    print(MARKER.sub(lambda marker: section(measured.get(marker[1])), page), end="")


def section(case: Mapping[str, Any] | None) -> str:
    """Return the figures of a case as a part of the page; None: it was never kept."""
    if case is None:
        return NONE
    return "\n".join([*_about(case["about"]), "", *_table(case), "", *_notes(case), *_plot(case)]).rstrip()


def _about(about: Mapping[str, Any]) -> list[str]:
    text = (
        f"Measured on {about['date'][:10]} with csi-multi {about['csi-multi']}, commit `{about['commit']}`, on "
        f"{about['cpus']} processors ({about['processor']}), Linux {about['kernel']}, Python {about['python']}, grpcio "
        f"{about['grpcio']}; load {about['load']:.1f} at the start."
    )
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(case: Mapping[str, Any]) -> Iterator[str]:
    yield f"| | unit | ours | {case['other']} | ratio | quartiles | goal | met |"
    yield "| --- | --- | ---: | ---: | ---: | --- | --- | --- |"
    for row in case["rows"]:
        quartiles = " to ".join(map(_number, row["spread"])) if row["spread"] else ""
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]
        figures = (_number(row["ours"]), _number(row["bare"]), _number(row["ratio"]))
        yield f"| {' | '.join((row['name'], row['unit'], *figures, quartiles, row['target'] or '', met))} |"


def _notes(case: Mapping[str, Any]) -> Iterator[str]:
    """Yield what belongs to single rows: how they were measured."""
    for row in case["rows"]:
        if row["note"]:
            yield from textwrap.wrap(f"- {row['name']}: {row['note']}", WIDTH, subsequent_indent="  ")
    if any(row["note"] for row in case["rows"]):
        yield ""


def _plot(case: Mapping[str, Any]) -> Iterator[str]:
    """Draw the ratios as bars, with a mark where both are equal."""
    rows = [row for row in case["rows"] if row["ratio"] is not None]
    if not rows:
        return
    width = max(len(row["name"]) for row in rows)
    most = max(1.0, *(row["ratio"] for row in rows))
    equal = max(1, round(BAR / most))  # the column of the mark
    yield "```text"
    yield f"{'ours / ' + case['other']:<{width}}  {' ' * (equal - 1)}1"
    for row in rows:
        bar = "█" * round(row["ratio"] * BAR / most)
        yield f"{row['name']:<{width}}  {bar:<{equal - 1}}{'│' if len(bar) < equal else ''} {row['ratio']:.2f}"
    yield "```"


def _number(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:.0f}" if abs(figure) >= 100 else f"{figure:.1f}" if abs(figure) >= 10 else f"{figure:.2f}"


if __name__ == "__main__":
    main()
