"""What the benchmarks say about figures; no figure is measured here."""

from __future__ import annotations

import pytest

from bench import table
from bench.table import Row, Target


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    row = table.compared("probe", "us", [10, 20, 90], [10, 10, 10])

    assert (row.ours, row.bare, row.ratio, row.spread) == (20, 10, 2, (1.5, 5.5))


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target(limit=2), True),
        (Target(limit=1.9), False),
        (Target(limit=2, at_least=True), True),
        (Target(limit=2.1, at_least=True), False),
        (Target(limit=20, absolute=True), True),
        (Target(limit=19, absolute=True), False),
        (None, None),
    ],
)
def test_a_target_is_met_or_not(target: Target | None, met: bool | None) -> None:
    row = table.compared("probe", "us", [20], [10], target=target)

    assert row.met is met


def test_a_ratio_that_was_not_measured_meets_no_target() -> None:
    assert Row(name="probe", unit="us", ours=1, target=Target(limit=2)).met is False


def test_one_figure_has_no_spread() -> None:
    assert table.alone("start", "s", [0.2]).spread is None


def test_the_table_shows_a_missed_target_loudly() -> None:
    missed = table.compared("stage", "ms", [30, 30], [10, 10], target=Target(limit=1.2), note="why")

    head, line, note = table.text([missed]).splitlines()
    assert head.split() == ["name", "unit", "ours", "bare", "ratio", "spread", "target", "met"]
    assert line.split() == ["stage", "ms", "30.0", "10.0", "3.00", "3.00..3.00", "<=", "1.2", "x", "NO"]
    assert note == "  stage: why"


def test_the_json_holds_every_column() -> None:
    row = table.compared("stage", "ms", [3.00004, 3], [2, 2], target=Target(limit=2))

    facts = row.facts()

    assert (facts["ratio"], facts["target"], facts["met"]) == (1.5, "<= 2 x", True)
    assert set(facts) == {*table.HEAD, "note"}
