"""csi-sanity 5.6.0, the CSI project's own suite, over the loop backend with real mounts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from csi_multi.host import loopdev, mounts
from csi_multi.host.privilege import Capability, held
from csi_multi.process import DriverProcess
from csi_multi.testing import sanity

pytestmark = [pytest.mark.sanity, pytest.mark.root]

MIB = 1 << 20
SIZE = {"ext4": 64 * MIB, "xfs": 320 * MIB, "btrfs": 160 * MIB}

# Why a spec may be skipped, as csi-sanity words it, and how many are. Anything else fails the test.
ALLOWED_SKIPS = {
    # one point in time across several loop files cannot be promised
    "GroupControllerService not supported": 6,
    # a loop volume has nothing that could be modified
    "ControllerModifyVolume not supported": 6,
    "Modify volume not supported": 1,
    "Modify Volume not supported": 1,
    # a loop device needs no attaching
    "ControllerPublishVolume not supported": 7,
    "ControllerUnpublishVolume not supported": 1,
    "Controller Publish, UnpublishVolume not supported": 2,
    # not offered: the spec compares Go structs with their size caches, so no driver that answers can pass
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported": 1,
}
PENDING = 1  # switched off in csi-sanity itself
SPECS = 103

CONFIG = """\
driver:
  {{name: sanity.csi-multi.example, node: n1, default_backend: scratch, default_fs_type: {fs_type}, alpha: true}}
backends:
  scratch: {{kind: loop, directory: {directory}/volumes}}
"""


def online_growth() -> list[str]:
    """The filesystems that can grow while mounted here: ext4 only with CAP_SYS_RESOURCE."""
    if held(Capability.CAP_SYS_RESOURCE):
        return ["ext4", "xfs", "btrfs"]
    print("ext4 is left out: this process lacks CAP_SYS_RESOURCE, so the kernel refuses to grow it online")
    return ["xfs", "btrfs"]


FILESYSTEMS = online_growth() if os.environ.get("MATRIX") else online_growth()[:1]


@pytest.fixture
def binary() -> str:
    found = os.environ.get("CSI_SANITY", "")
    if not found:
        pytest.fail("CSI_SANITY must name the csi-sanity binary; run make sanity")
    return found


@pytest.fixture
def nothing_leaks(tmp_path: Path) -> Iterator[None]:
    yield
    below = f"{tmp_path}/"
    assert not [mount.target for mount in mounts.table() if mount.target.startswith(below)]
    assert not [device for device, file in loopdev.bound().items() if file.startswith(below)]
    assert not list(tmp_path.glob("volumes/*/*"))
    assert not list(tmp_path.glob("*.sock"))


@pytest.mark.parametrize("endpoints", ["one", "split"])
@pytest.mark.parametrize("access", ["mount", "block"])
@pytest.mark.parametrize("fs_type", FILESYSTEMS)
def test_every_spec_passes(
    binary: str, tmp_path: Path, nothing_leaks: None, fs_type: str, access: str, endpoints: str
) -> None:
    config = CONFIG.format(directory=tmp_path, fs_type=fs_type)
    modes = {"one": ["all"], "split": ["node", "controller"]}[endpoints]
    drivers = [DriverProcess(tmp_path, config, mode=mode, name=mode) for mode in modes]
    clients = [driver.start() for driver in drivers]
    try:
        both = (drivers[0].endpoint, drivers[-1].endpoint)
        report = sanity.run(binary, tmp_path, both, access=access, size=SIZE[fs_type])
    finally:
        for client in clients:
            client.close()
        codes = [driver.stop() for driver in drivers]

    assert [one for one in report if one.state not in ("passed", "skipped", "pending")] == []
    assert Counter(one.message for one in report if one.state == "skipped") == ALLOWED_SKIPS
    assert sum(one.state == "pending" for one in report) == PENDING
    assert len(report) == SPECS
    assert [0] * len(drivers) == codes
