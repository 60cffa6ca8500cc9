"""csi-sanity 5.6.0 over thin and thick logical volumes, mounted and as block devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from sanity_run import every_spec_passes, online_growth

from .group import EXTENT, Group
from .matrix import FULL

pytestmark = [
    pytest.mark.sanity,
    pytest.mark.devicemapper,
    pytest.mark.skipif(not FULL, reason="make matrix: four minutes each in a guest; the kit runs on lvm"),
]

COMBINATIONS = [("thin", "mount"), ("thin", "block"), ("linear", "mount"), ("linear", "block")]


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
