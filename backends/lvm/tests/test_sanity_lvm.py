"""csi-sanity 5.6.0 over thin and thick logical volumes, mounted and as block devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sanity_run import every_spec_passes, online_growth

from .group import EXTENT, Group

pytestmark = [pytest.mark.sanity, pytest.mark.devicemapper]

TYPES = ("thin", "linear")
ACCESSES = ("mount", "block")
MET_ONCE = [("thin", "mount")]  # the others are for `make matrix`
COMBINATIONS = [(type_, access) for type_ in TYPES for access in ACCESSES] if os.environ.get("MATRIX") else MET_ONCE


@pytest.mark.parametrize(("type_", "access"), COMBINATIONS)
def test_every_spec_passes(tmp_path: Path, group: Group, type_: str, access: str) -> None:
    settings = {
        "kind": "lvm",
        "volume_group": group.name,
        "thin_pool": group.pool,
        "type": type_,
        "reserve_percent": 0,
        "overprovision": 100,
        "min_size": EXTENT,
    }
    backend = ", ".join(f"{name}: {value}" for name, value in settings.items())
    every_spec_passes(tmp_path, f"{{{backend}}}", access=access, fs_type=online_growth()[0])

    assert not list(tmp_path.glob("*.sock"))
