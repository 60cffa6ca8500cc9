"""csi-sanity 5.6.0 over encrypted volumes of the loop backend."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sanity_run import every_spec_passes, online_growth

from .conftest import CLASS, SECRET, mappers

pytestmark = [
    pytest.mark.sanity,
    pytest.mark.devicemapper,
    pytest.mark.skipif(not os.environ.get("MATRIX"), reason="make matrix: minutes in a guest"),
]


@pytest.mark.parametrize("access", ["mount", "block"])
def test_every_spec_passes(tmp_path: Path, access: str) -> None:
    backend = f"{{kind: loop, directory: {tmp_path}/scratch, reserve_percent: 0}}"
    fs_type = online_growth()[0]

    every_spec_passes(tmp_path, backend, access=access, fs_type=fs_type, parameters=CLASS, secrets=SECRET)
    assert mappers() == []
