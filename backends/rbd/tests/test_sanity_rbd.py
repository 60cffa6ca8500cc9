"""csi-sanity 5.6.0 over a real cluster: node and suite in a guest, which maps images, the controller outside of it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from csi_multi_testing import sanity
from sanity_run import ALLOWED_SKIPS, PENDING, SIZE, SPECS, binary

from csi_multi.host import mounts
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

if TYPE_CHECKING:
    from .ceph_remote import Remote

pytestmark = pytest.mark.krbd

START = 180.0  # seconds for the driver to listen: the guest is emulated
TIME_LIMIT = 3600.0  # seconds for all specs, for the same reason
GONE = 60.0  # seconds for the background to remove what was deleted
# Each takes minutes: `make rbd` has one.
RUNS = [pytest.param("rbd", "mount", "{zone: a}", id="rbd-mount")]
if os.environ.get("MATRIX"):
    RUNS += [
        pytest.param("rbd-nbd", "block", "{}", id="nbd-block"),
        pytest.param("rbd", "block", "{}", id="rbd-block"),
        pytest.param("rbd-nbd", "mount", "{}", id="nbd-mount"),
    ]
CONFIG = """\
driver:
  {{name: sanity.csi-multi.example, node: n1, default_backend: ceph, default_fs_type: ext4, alpha: true}}
backends:
  ceph:
    kind: rbd
    monitors: [{monitors}]
    fsid: {fsid}
    pool: {pool}
    namespace: {namespace}
    user: {user}
    keyring: {keyring}
    mounter: {mounter}
    topology: {topology}
"""


@pytest.fixture
def endpoints(
    cluster: Remote, namespace: str, tmp_path: Path, mounter: str, topology: str
) -> Iterator[tuple[str, str]]:
    """Of the node's driver, which runs here, and of the controller's."""
    facts = {name: getattr(cluster, name) for name in ("fsid", "pool", "user")}
    facts |= {"namespace": namespace, "monitors": ",".join(cluster.monitors), "mounter": mounter, "topology": topology}
    with cluster.controller(CONFIG.format(keyring=cluster.keyring_outside, **facts)) as controller:
        driver = DriverProcess(tmp_path, CONFIG.format(keyring=cluster.keyring, **facts), mode="node")
        driver.launch()
        client = Client(driver.endpoint)
        try:
            client.wait(START)
        finally:
            client.close()
        yield driver.endpoint, controller
        status = driver.stop()
        print(driver.log_tail(20_000))
        assert status == 0


@pytest.fixture
def nothing_stays(cluster: Remote, namespace: str, tmp_path: Path) -> Iterator[None]:
    """Neither in the cluster, where deletion ends in the background, nor on the node."""
    assert cluster.everything(namespace) == []
    yield
    ends = time.monotonic() + GONE
    while (left := cluster.everything(namespace)) and time.monotonic() < ends:
        time.sleep(0.5)
    assert left == []
    assert [mount.target for mount in mounts.table() if mount.target.startswith(f"{tmp_path}/")] == []
    assert list(Path("/sys/bus/rbd/devices").iterdir()) == []
    assert list(Path("/sys/block").glob("nbd*/pid")) == []


@pytest.mark.parametrize(("mounter", "access", "topology"), RUNS)
def test_every_spec_passes(
    tmp_path: Path, nothing_stays: None, endpoints: tuple[str, str], monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    monkeypatch.setattr(sanity, "TIME_LIMIT", TIME_LIMIT)

    report = sanity.run(binary(), tmp_path, endpoints, access=access, size=SIZE["ext4"])

    slowest = sorted(report, key=lambda one: -one.seconds)[:5]
    print(f"{sum(one.seconds for one in report):.0f} s in all, {[(one.name, one.seconds) for one in slowest]}")
    for one in report:
        assert one.state in ("passed", "skipped", "pending"), f"{one.name}: {one.state}: {one.message}"
    skips = Counter(one.message for one in report if one.state == "skipped")
    assert skips == ALLOWED_SKIPS, f"skipped: {skips}"
    assert sum(one.state == "pending" for one in report) == PENDING, "not what is switched off in csi-sanity"
    assert len(report) == SPECS, f"{len(report)} specs"
