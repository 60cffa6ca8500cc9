"""csi-sanity 5.6.0, the CSI project's own suite, over the loop backend with real mounts."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from csi_multi.host import loopdev, mounts
from csi_multi.host.privilege import Capability, held
from csi_multi.process import DriverProcess

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
        report = run(binary, tmp_path, drivers, access, SIZE[fs_type])
    finally:
        for client in clients:
            client.close()
        codes = [driver.stop() for driver in drivers]

    assert [
        f"{text}: {message}" for text, state, message in report if state not in ("passed", "skipped", "pending")
    ] == []
    assert Counter(message for _, state, message in report if state == "skipped") == ALLOWED_SKIPS
    assert sum(state == "pending" for _, state, _ in report) == PENDING
    assert len(report) == SPECS
    assert [0] * len(drivers) == codes


def run(
    binary: str, directory: Path, drivers: list[DriverProcess], access: str, size: int
) -> list[tuple[str, str, str]]:
    """Run the suite; return (spec, state, message) of each spec."""
    report = directory / "report.json"
    command = [
        binary,
        f"--csi.endpoint={drivers[0].endpoint}",
        f"--csi.controllerendpoint={drivers[-1].endpoint}",
        f"--csi.mountdir={directory}/mount",
        f"--csi.stagingdir={directory}/staging",
        f"--csi.testvolumeaccesstype={access}",
        f"--csi.testvolumesize={size}",
        f"--csi.testvolumeexpandsize={2 * size}",
        f"--ginkgo.json-report={report}",
        "--ginkgo.no-color",
    ]
    with (directory / "sanity.out").open("w") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=900, check=False)
    specs = [spec for spec in json.loads(report.read_text())[0]["SpecReports"] if spec["LeafNodeType"] == "It"]
    return [
        (
            " > ".join([*spec["ContainerHierarchyTexts"], spec["LeafNodeText"]]),
            spec["State"],
            (spec.get("Failure") or {}).get("Message", ""),
        )
        for spec in specs
    ]
