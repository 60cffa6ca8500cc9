"""csi-sanity 5.6.0: the controller on the simulated EC2, the node in a guest where attaching plugs an NVMe disk in."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xmlrpc.client import ServerProxy

import pytest
from csi_multi_testing import sanity
from sanity_run import PENDING, SPECS, binary

from csi_multi.host import mounts
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

pytestmark = pytest.mark.skipif("HOTPLUG_EC2" not in os.environ, reason="for a guest that hotplug.py starts")

GIB = 1 << 30
START = 180.0  # seconds for the driver to listen: the guest is emulated
TIME_LIMIT = 3600.0  # seconds for all specs, for the same reason
CONFIG = """\
driver:
  {{name: sanity.csi-multi.example, node: n1, default_backend: {name}, default_fs_type: ext4, alpha: true}}
backends:
  {name}:
    kind: ebs
    region: {region}
    zones: [{region}a]  # some specs ask for no topology, and attach all the same
    endpoint: {ec2}
    consistency_seconds: 1  # the simulated EC2 shows everything at once
    metadata: static
    instance_id: {instance}
    zone: {region}a
    instance_type: m7i.large
"""
# Why a spec may be skipped, as csi-sanity words it, and how many are.
ALLOWED_SKIPS = {
    # not offered: the spec compares Go structs with their size caches, so no driver that answers can pass
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported": 1,
    # a node asks EC2 nothing
    "NodeGetStorageHealth not supported": 1,
    # asks for more volumes than the node takes, one by one
    "testnodevolumeattachlimit not enabled": 1,
}


@pytest.fixture
def driver(tmp_path: Path, access: str) -> Iterator[DriverProcess]:
    """The driver on this guest, with the credentials of the simulated EC2.

    Each run has an instance of its own: some names of volumes are the same in all, and EC2 remembers their tokens.
    """
    facts = {name: os.environ[f"HOTPLUG_{name.upper()}"] for name in ("ec2", "region", "instance")}
    credentials = {name: text for name, text in os.environ.items() if name.startswith("AWS_")}  # conftest.py's
    driver = DriverProcess(tmp_path, CONFIG.format(name=access, **facts), environment=credentials)
    driver.launch()
    client = Client(driver.endpoint)
    try:
        client.wait(START)
    finally:
        client.close()
    yield driver
    status = driver.stop()
    print(driver.log_tail(20_000))
    assert status == 0


@pytest.fixture
def nothing_stays(tmp_path: Path) -> Iterator[None]:
    """Neither in EC2, nor on the bus, nor on the node."""
    with ServerProxy(os.environ["HOTPLUG_BUS"]) as outside:
        before = outside.everything()
    yield
    with ServerProxy(os.environ["HOTPLUG_BUS"]) as outside:
        assert outside.everything() == before
        assert outside.plugged() == []
    assert [mount.target for mount in mounts.table() if mount.target.startswith(f"{tmp_path}/")] == []
    assert list(Path("/dev/csi-multi-ebs").glob("*")) == []


@pytest.mark.parametrize("access", ["mount", "block"])
def test_every_spec_passes(
    tmp_path: Path, nothing_stays: None, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    monkeypatch.setattr(sanity, "TIME_LIMIT", TIME_LIMIT)
    report = sanity.run(
        binary(),
        tmp_path,
        (driver.endpoint, driver.endpoint),
        access=access,
        size=GIB,
        mutable={"type": "gp3", "throughput": "200"},
    )

    slowest = sorted(report, key=lambda one: -one.seconds)[:5]
    print(f"{sum(one.seconds for one in report):.0f} s in all, {[(one.name, one.seconds) for one in slowest]}")
    for one in report:
        assert one.state in ("passed", "skipped", "pending"), f"{one.name}: {one.state}: {one.message}"
    skips = Counter(one.message for one in report if one.state == "skipped")
    assert skips == ALLOWED_SKIPS, f"skipped: {skips}"
    assert sum(one.state == "pending" for one in report) == PENDING, "not what is switched off in csi-sanity"
    assert len(report) == SPECS, f"{len(report)} specs"
