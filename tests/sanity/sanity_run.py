"""One run of csi-sanity 5.6.0 over a driver of this project, and the required result of every spec.

The tests of all backends use it: pyproject.toml puts this directory on their path.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from csi_multi_testing import sanity

from csi_multi.host.privilege import LinuxCapability, held
from csi_multi.process.driver_process import DriverProcess

MIB = 1 << 20
SIZE = {"ext4": 64 * MIB, "xfs": 320 * MIB, "btrfs": 160 * MIB}

# The messages with which csi-sanity may skip specs, and how many specs. Any other skip fails the test. There are
# numbers for backends without modifiable parameters and attachment.
ALLOWED_SKIPS = {
    # such a volume has no modifiable parameter
    "ControllerModifyVolume not supported": 6,
    "Modify volume not supported": 1,
    "Modify Volume not supported": 1,
    # its device is on the node
    "ControllerPublishVolume not supported": 7,
    "ControllerUnpublishVolume not supported": 1,
    "Controller Publish, UnpublishVolume not supported": 2,
    # not offered: the spec compares Go structs with their size caches, so no driver that answers can pass
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported": 1,
}
PENDING = 1  # disabled in csi-sanity itself
SPECS = 103

CONFIG = """\
driver:
  {{name: sanity.csi-multi.example, node: n1, default_backend: scratch, default_fs_type: {fs_type}, alpha: true}}
backends:
  scratch: {backend}
"""
MODES = {"one": ["all"], "split": ["node", "controller"]}  # endpoints


def binary() -> str:
    found = os.environ.get("CSI_SANITY", "")
    if not found:
        pytest.fail("CSI_SANITY must be the path of csi-sanity; the make targets set it")
    return found


def online_growth() -> list[str]:
    """Return the filesystems that can grow while mounted on this machine: ext4 only with CAP_SYS_RESOURCE."""
    if held(LinuxCapability.CAP_SYS_RESOURCE):
        return ["ext4", "xfs", "btrfs"]
    print("ext4 is left out: this process lacks CAP_SYS_RESOURCE, so the kernel refuses to grow it online")
    return ["xfs", "btrfs"]


def every_spec_passes(
    directory: Path,
    backend: str,
    *,
    access: str,
    fs_type: str,
    endpoints: str = "one",
    skips: Mapping[str, int] = ALLOWED_SKIPS,
    parameters: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> None:
    """Start a driver with this backend (YAML, in one line), run the suite, and require the result of every spec."""
    config = CONFIG.format(backend=backend, fs_type=fs_type)
    modes = MODES[endpoints]
    drivers = [DriverProcess(directory, config, mode=mode, name=mode) for mode in modes]
    clients = [driver.start() for driver in drivers]
    try:
        both = (drivers[0].endpoint, drivers[-1].endpoint)
        report = sanity.run(
            binary(), directory, both, access=access, size=SIZE[fs_type], parameters=parameters, secrets=secrets
        )
    finally:
        for client in clients:
            client.close()
        codes = [driver.stop() for driver in drivers]

    answer_all(report, skips)
    assert [0] * len(drivers) == codes, f"the drivers ended with {codes}"


def answer_all(report: list[sanity.GinkgoSpec], skips: Mapping[str, int]) -> None:
    """Require that every spec passed, except as many skips as are allowed for these messages."""
    for one in report:
        assert one.state in ("passed", "skipped", "pending"), f"{one.name}: {one.state}: {one.message}"
    found = Counter(one.message for one in report if one.state == "skipped")
    assert found == skips, f"skipped: {found}"
    assert sum(one.state == "pending" for one in report) == PENDING, "without the specs that are disabled in csi-sanity"
    assert len(report) == SPECS, f"{len(report)} specs"
