"""The kit's checks of devices and their bytes, on NVMe disks that attaching plugs in.

test_contract.py has the rest.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from xmlrpc.client import ServerProxy

import pytest
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config
from csi_multi_testing import Storage, setting
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.context import in_process

from csi_multi.contract import Backend, Host, Node, SizeRange, Stamp, VolumeRequest
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.skipif("HOTPLUG_EC2" not in os.environ, reason="for a guest that hotplug.py starts")

GIB = 1 << 30
LEFT_OUT = {
    # QEMU's NVMe disks do not grow while they are plugged in; test_devices_nvme.py has a disk that does
    "an open device grows with its volume",
    "refreshing a device can be retried after any call fails",
    "refreshing a device completes after a crash at any call",
}
NAMES = [name for name, one in CHECKS.items() if (one.data or "devices" in one.needs) and name not in LEFT_OUT]
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def outside() -> Iterator[ServerProxy]:
    with ServerProxy(os.environ["HOTPLUG_BUS"]) as outside:
        yield outside


@pytest.fixture
def storage(outside: ServerProxy) -> Storage:
    """An instance of its own for each check: EC2 remembers the tokens of names."""
    instances = os.environ["HOTPLUG_INSTANCE"], os.environ["HOTPLUG_OTHER"]
    name = f"kit{next(numbers)}"
    zone = f"{os.environ['HOTPLUG_REGION']}a"
    config = Config(
        region=os.environ["HOTPLUG_REGION"],
        zones=(zone,),
        endpoint=os.environ["HOTPLUG_EC2"],
        consistency_seconds=0,
        merge_seconds=0,
        poll_seconds=0.05,
        metadata="static",
        instance_id=instances[0],
        instance_type="m7i.large",
        zone=zone,
    )
    theirs: list[str] = []

    def connect(host: Host) -> Backend:
        return EbsBackend(config, setting(host, instance=name))

    def foreign() -> None:
        other = EbsBackend(config, replace(setting(LocalHost(), instance=name), driver="other.example"))
        stamp = Stamp(driver="other.example", cluster="kit", name=f"theirs-{len(theirs)}", digest="")
        theirs.append(other.create_volume(VolumeRequest(stamp=stamp, size=SizeRange(required=GIB))).handle)

    @contextmanager
    def together(handles: Collection[str]) -> Iterator[None]:
        attached = outside.attach_missing(list(handles), instances[0])
        try:
            yield
        finally:
            outside.detach_all(attached)

    foreign()
    nodes = tuple(
        Node(name=f"node-{number}", fact=instance, id=f"node-{number};{name}={instance}")
        for number, instance in enumerate(instances, 1)
    )
    return Storage(
        connect=connect,
        parameters={"type": "gp3"},
        size=GIB,
        resources=outside.everything,
        foreign=foreign,
        foreign_handles=tuple(theirs),
        nodes=nodes,
        reachable=({"zone": zone},),
        unreachable=({"zone": "us-east-1a"},),
        files=(Path("/dev/csi-multi-ebs"), Path("/dev/csi-multi-ebs-formats")),
        devices=True,
        together=together,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_about_devices_holds(name: str, storage: Storage) -> None:
    outcome = run(CHECKS[name], in_process(storage))
    if outcome.state is CheckState.SKIPPED:
        pytest.skip(outcome.text)
    assert outcome.state is CheckState.PASSED, outcome.text
