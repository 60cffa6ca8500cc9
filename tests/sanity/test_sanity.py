"""csi-sanity 5.6.0, the CSI project's test suite, over the loop backend with real mounts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sanity_run import ALLOWED_SKIPS, every_spec_passes, online_growth

from csi_multi.host import loopdev, mounts

pytestmark = [pytest.mark.sanity, pytest.mark.root]

FILESYSTEMS = online_growth() if os.environ.get("MATRIX") else online_growth()[:1]


@pytest.fixture
def nothing_leaks(tmp_path: Path) -> Iterator[None]:
    yield
    below = f"{tmp_path}/"
    assert not [mount.target for mount in mounts.table() if mount.target.startswith(below)]
    assert not [device for device, file in loopdev.bound_devices().items() if file.startswith(below)]
    assert not list(tmp_path.glob("volumes/*/*"))
    assert not list(tmp_path.glob("*.sock"))


@pytest.mark.parametrize("endpoints", ["one", "split"])
@pytest.mark.parametrize("access", ["mount", "block"])
@pytest.mark.parametrize("fs_type", FILESYSTEMS)
def test_every_spec_passes(tmp_path: Path, nothing_leaks: None, fs_type: str, access: str, endpoints: str) -> None:
    backend = f"{{kind: loop, directory: {tmp_path}/volumes, reserve_percent: 0}}"
    every_spec_passes(tmp_path, backend, access=access, fs_type=fs_type, endpoints=endpoints, skips=ALLOWED_SKIPS)
