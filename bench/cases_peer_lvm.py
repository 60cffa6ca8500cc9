"""The lvm backend beside csi-driver-lvm: whole lives of linear volumes, one after another, where device-mapper is.

csi-driver-lvm mounts a volume at the pod's path when it is published, and does nothing when it is staged. It never
deactivates a volume, and does not look at the device before it makes a filesystem on it.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec

from .cases_lvm import inside
from .cases_peer_node import rows_of
from .peers import BUILT, Program
from .table import Row, Target

TARGETS = {"a whole life": Target(limit=1.2)}


def beside_csi_driver_lvm(directory: Path, *, program: Program, quick: bool) -> list[Row]:
    """Times of each step of a volume's life."""
    del directory
    before = os.getloadavg()[0]
    where, output = inside("bench.lvm_peer_inside", str(_shown_to_guest(program.path)), str(2 if quick else 12))
    rows = rows_of(msgspec.json.decode(output, type=list[dict[str, list[float]]]), TARGETS)
    note = f"{where}; load {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    return [replace(rows[0], note=note), *rows[1:]]


def _shown_to_guest(program: Path) -> Path:
    """Return the program at a place that a guest sees: it has a /tmp of its own."""
    if BUILT in program.parents:
        return program
    BUILT.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(program, BUILT / "csi-driver-lvm-given"))
