"""The rbd backend beside ceph-csi, both with the same Ceph cluster, which is started here; the nodes are not measured.

The drivers take turns, step by step: one starts when the other has done all its work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from .cases_rbd import ceph_version, instance
from .peers import Program
from .rbd_driver import driver
from .rbd_sides import Side, ceph_csi, settled, timed
from .table import Row, Target, compared

STEPS = ("create", "snapshot", "restore", "clone", "expand", "delete copies", "delete snapshot", "delete volume")
UNSHOWN = "delete copies"  # two volumes at once, so that what they are made of can go
CALLERS = 16
AT_ONCE = 2 * CALLERS
TOGETHER = Target(limit=2)
PROCESSOR = Target(limit=3.7)  # half of what it was in November 2026
IDLE = Target(limit=0.05, absolute=True)
CHECKS = 30  # seconds: the default
Figures = dict[str, tuple[list[float], list[float]]]  # by step, of our side and of theirs, one per round


def beside_ceph_csi(directory: Path, *, program: Program, quick: bool) -> list[Row]:
    """Times one by one and with 16 callers, processor time, and the processor time of a minute without calls."""
    with _both(directory, program) as sides:
        before = os.getloadavg()[0]
        alone, _ = _rounds(sides, "one", 1, 3 if quick else 25)
        together, processor = _rounds(sides, "many", CALLERS, 1 if quick else 5)
        about = f"{ceph_version()}; load {before:.1f} before, {os.getloadavg()[0]:.1f} after"
        refused = f"calls refused and sent again: {sides[0].refused} and {sides[1].refused}"
        idle = _idle(sides, *((1, 5) if quick else (60, 600)))
        memory = [[side.server.memory()["Rss"]] for side in sides]
    shown = [step for step in STEPS if step != UNSHOWN]
    return [
        *(_times(step, "ms", alone[step], 1000, note=about if step == "create" else "") for step in shown),
        *(
            _times(
                f"{AT_ONCE} x {step}, {CALLERS} callers", "s", together[step], 1, TOGETHER, refused * (step == "create")
            )
            for step in shown
        ),
        *(_sums(f"{step}, processor", "ms", processor[step], 1000 / AT_ONCE) for step in shown),
        _processor(processor),
        idle,
        compared("RSS after all rounds", "MiB", *memory),
    ]


def _rounds(sides: Sequence[Side], name: str, callers: int, rounds: int) -> tuple[Figures, Figures]:
    """Return the seconds and the processor seconds of each step of each round."""
    took: Figures = {step: ([], []) for step in STEPS}
    used: Figures = {step: ([], []) for step in STEPS}
    for round_ in range(-1, rounds):
        names = [f"{name}-{round_}-{number}" for number in range(1 if callers == 1 else AT_ONCE)]
        for step in STEPS:
            for at in (0, 1) if round_ % 2 == 0 else (1, 0):
                work = getattr(sides[at], step.replace(" ", "_"))
                seconds, processor = timed(sides[at], work, names, callers)
                if round_ >= 0:  # the one before warms up
                    took[step][at].append(seconds)
                    used[step][at].append(processor)
    return took, used


def _times(
    name: str,
    unit: str,
    sides: tuple[list[float], list[float]],
    scale: float,
    target: Target | None = None,
    note: str = "",
) -> Row:
    ours, theirs = ([one * scale for one in side] for side in sides)
    return compared(name, unit, ours, theirs, target=target, note=note)


def _sums(
    name: str, unit: str, sides: Sequence[Sequence[float]], scale: float, target: Target | None = None, note: str = ""
) -> Row:
    """Make a row of what all rounds took together: the clock of processes is too coarse for the ratio of each."""
    ours, theirs = (sum(side) * scale / len(side) for side in sides)
    ratio = ours / theirs if theirs else None
    return Row(name=name, unit=unit, ours=ours, bare=theirs, ratio=ratio, target=target, note=note)


def _processor(used: Figures) -> Row:
    """Add up all steps, those too that have no row."""
    sums = [[sum(parts) for parts in zip(*(used[step][at] for step in STEPS), strict=True)] for at in (0, 1)]
    note = "with all commands, and with what follows the answers; ceph-csi lets ceph-mgr delete, which is not counted"
    return _sums("a whole life, processor", "ms", sums, 1000 / AT_ONCE, PROCESSOR, note)


def _idle(sides: Sequence[Side], rest: int, seconds: int) -> Row:
    """Measure both at the same time, for as long as it takes until each regular task has run.

    Before that they rest: what they put off while they were busy is not idle.
    """
    time.sleep(rest)
    before = [settled(side.server) for side in sides]
    time.sleep(seconds)
    used = [[side.server.cpu(commands=True) - start] for side, start in zip(sides, before, strict=True)]
    return _sums(
        "idle, processor in a minute",
        "s",
        used,
        60 / seconds,
        IDLE,
        f"measured for {seconds} s, {rest} s after the last call",
    )


@contextmanager
def _both(directory: Path, program: Program) -> Iterator[tuple[Side, Side]]:
    """Our controller and theirs on a cluster of their own for the block."""
    with import_module("backends.rbd.tests.ceph").Cluster(directory / "ceph") as cluster:
        for namespace in ("ours", "theirs"):
            cluster.add(namespace)
        with (
            driver(directory, "driver", instance(cluster, "ours"), checks=CHECKS) as (server, caller),
            ceph_csi(directory, program, cluster, "theirs") as theirs,
        ):
            yield Side(server, caller, volume_parameters={"backend": "ceph"}), theirs
