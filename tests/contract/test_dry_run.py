"""A dry run reads, records changes instead of making them, and runs no command of unknown purpose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from csi_multi.contract import CommandPurpose, DryRunHost, DryRunReport, Result, Step, Unpredictable


class Machine:
    """Remembers the commands that are really run."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []

    def run(self, *argv: str, **_: object) -> Result:
        self.commands.append(argv)
        return Result(0, "real", "")


PURPOSES = {
    "lvs": CommandPurpose(why="reads the volumes", read_only=True),
    "vgs": CommandPurpose(why="reads the groups", read_only=True),
    "lvcreate": CommandPurpose(why="creates the volume"),
}


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def report() -> DryRunReport:
    return DryRunReport()


@pytest.fixture
def host(machine: Machine, report: DryRunReport) -> DryRunHost:
    def purpose(argv: Sequence[str]) -> CommandPurpose | None:
        return PURPOSES.get(argv[0])

    return DryRunHost(machine, report, purpose, lambda argv: "usual" if argv[0] == "vgs" else None)


def test_a_read_is_done_and_recorded(host: DryRunHost, machine: Machine, report: DryRunReport) -> None:
    assert host.run("lvs", "vg0").stdout == "real"
    assert machine.commands == [("lvs", "vg0")]
    assert report.steps == [Step(words=("lvs", "vg0"), why="reads the volumes", changes=False)]


def test_a_read_with_a_usual_output_is_recorded_only(host: DryRunHost, machine: Machine, report: DryRunReport) -> None:
    assert host.run("vgs").stdout == "usual"
    assert (machine.commands, [step.words for step in report.steps]) == ([], [("vgs",)])


def test_a_change_is_recorded_only(host: DryRunHost, machine: Machine, report: DryRunReport) -> None:
    assert host.run("lvcreate", "v") == Result(0, "", "")
    assert machine.commands == []
    assert report.steps == [Step(words=("lvcreate", "v"), why="creates the volume")]


def test_a_command_of_unknown_purpose_is_not_run(host: DryRunHost, machine: Machine, report: DryRunReport) -> None:
    with pytest.raises(
        Unpredictable, match="the command lvremove v is not in the table of the dry run, so it was not run"
    ):
        host.run("lvremove", "v")
    assert (machine.commands, report.steps) == ([], [])


def test_an_assumption_is_recorded_once(report: DryRunReport) -> None:
    report.record_assumption("extents of 4 MiB")
    report.record_assumption("extents of 4 MiB")

    assert report.assumed == ["extents of 4 MiB"]
