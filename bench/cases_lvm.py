"""The lvm backend compared with lvm itself: on this machine, or in a guest where this kernel has no device-mapper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from csi_multi.host.command import LocalHost

from . import lvm_processes
from .processes import Unmeasurable
from .table import Row, Target, alone, compared

PROJECT = Path(__file__).resolve().parent.parent
LIMIT = 900  # seconds for all of it, a guest's boot included
MARK = "measured: "
TARGET = Target(limit=1.3)
BUDGET = Target(limit=2, absolute=True)
BUDGETED = ("CreateVolume, cold", "CreateVolume, warm")
COMPARED = {  # the driver's measurement, the bare command's, the target
    "CreateVolume, cold": ("create cold", "bare create", TARGET),
    "CreateVolume, warm": ("create warm", "bare create", TARGET),
    "CreateSnapshot, cold": ("snapshot cold", "bare snapshot cold", TARGET),
    "CreateSnapshot, warm": ("snapshot warm", "bare snapshot warm", TARGET),
    "DeleteVolume": ("delete", "bare delete", TARGET),
    "DeleteSnapshot": ("delete snapshot", "bare delete snapshot", None),
}
CORE = "import csi_multi.commands.cli, csi_multi.process.serve"
OURS = f"{CORE}, csi_multi_lvm.backend"
IMPORT = """\
import time; began = time.process_time(); {}; took = time.process_time() - began
print(took * 1000, next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


class Measured(msgspec.Struct):
    """What lvm_inside.py measured, by type of volume: milliseconds, and lvm commands by RPC."""

    kernel: str
    lvm: str
    times: dict[str, dict[str, list[float]]]
    processes: dict[str, dict[str, list[str]]]


def lvm(directory: Path, *, quick: bool) -> list[Row]:
    """Measure creation, snapshot, deletion; the lvm processes per RPC; the cost of importing the backend."""
    del directory
    before = os.getloadavg()[0]
    where, output = inside("bench.lvm_inside", str(2 if quick else 12))
    found = msgspec.json.decode(output, type=Measured)
    about = f"{where}; kernel {found.kernel}, LVM {found.lvm}; load {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    rows = [row for type_, times in found.times.items() for row in _times(type_, times, about)]
    rows += [row for type_, made in found.processes.items() for row in _processes(type_, made)]
    return rows + _imports(3 if quick else 11)


def inside(module: str, *arguments: str) -> tuple[str, str]:
    """Run the part that needs device-mapper. Return where it ran, in words, and what it measured, as JSON."""
    # fmt: off
    words = (
        sys.executable, "tests/guest/run.py", "--unless", "device-mapper", "--timeout", str(LIMIT), "--",
        "unshare", "--mount", sys.executable, "-m", module, *arguments,
    )
    # fmt: on
    process = subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate()
    finally:
        process.terminate()  # when interrupted: it ends the guest and cleans up
        process.wait()
    lines = output.splitlines()
    measured = [line.partition(MARK)[2] for line in lines if line.startswith(MARK)]
    if process.returncode or not measured:
        raise Unmeasurable(f"tests/guest/run.py exited with status {process.returncode}:\n{output[-3000:]}")
    where = next((line for line in lines if line.startswith("running ")), "")
    return where.removeprefix("running "), measured[-1]


def _times(type_: str, times: dict[str, list[float]], about: str) -> list[Row]:
    rows: list[Row] = []
    for name, (ours, bare, target) in COMPARED.items():
        counts = sorted({round(count) for count in times[f"{ours}, processes"]})
        note = f"{' or '.join(map(str, counts))} lvm processes{'' if rows else f'; {about}'}"
        rows.append(compared(f"{name}, {type_}", "ms", times[ours], times[bare], target=target, note=note))
        rows.append(alone(f"{name}, {type_}, beside lvm", "ms", times[f"{ours}, beside lvm"]))
    return rows


def _processes(type_: str, made: dict[str, list[str]]) -> list[Row]:
    return [
        Row(
            name=f"{rpc}, {type_}, processes",
            unit="lvm",
            ours=len(commands),
            target=BUDGET if rpc in BUDGETED else None,
            note=lvm_processes.words(commands),
        )
        for rpc, commands in sorted(made.items())
    ]


def _imports(rounds: int) -> list[Row]:
    """Measure a process that has imported the backend, compared with one that has imported the core alone."""
    figures: tuple[list[tuple[float, float]], ...] = ([], [])
    for _ in range(rounds):
        for side, code in enumerate((OURS, CORE)):
            took, kib = LocalHost().run(sys.executable, "-c", IMPORT.format(code)).stdout.split()
            figures[side].append((float(took), int(kib) / 1024))
    times, memory = (tuple([figure[at] for figure in side] for side in figures) for at in (0, 1))
    return [
        compared("import of core and lvm", "CPU ms", *times, note="compared with the core alone"),
        compared("RSS of core and lvm", "MiB", *memory, note="compared with the core alone; after the imports"),
    ]
