"""The kit of csi_multi on EBS: moto's EC2 behind a simulation, every call of which can die, fail or time out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from csi_multi_ebs import capacity, retries
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config
from csi_multi_ebs.session import Session
from csi_multi_testing import Call, Storage, setting

from csi_multi.contract import Backend, Host, Node, SizeRange, Stamp, VolumeRequest
from csi_multi.host.command import LocalHost

from . import fake_ebs_blocks
from .fake_ec2 import REGION, FakeEc2

GIB = 2**30
SIZE = 8 * GIB  # room for more IOPS than the least
LEFT_OUT = {  # they fill volumes, which would be in this process's memory
    "what a snapshot shares with its volume is promised to both",
    "what a clone shares with its source is promised to both",
}


def unreachable() -> Exception:
    return EndpointConnectionError(endpoint_url="https://ec2.example")


def silent() -> Exception:
    return ReadTimeoutError(endpoint_url="https://ec2.example")


@pytest.fixture
def storage(cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch) -> Storage:
    for name, seconds in (("FIRST_PAUSE", 0.01), ("LONGEST_PAUSE", 0.05)):  # the kit lets every call fail
        monkeypatch.setattr(retries, name, seconds)
    for name in ("QUOTAS_TTL", "USAGE_TTL"):  # else the kit would be told the same figure all the time
        monkeypatch.setattr(capacity, name, 0.0)
    instances = cloud.instances(2)
    config = Config(
        region=REGION,
        zones=(f"{REGION}a",),
        endpoint=cloud.endpoint,
        consistency_seconds=0,
        merge_seconds=0,
        poll_seconds=0.01,
        wait_seconds=10,
        metadata="static",
        instance_id=instances[0],
        instance_type="m5.large",
        zone=f"{REGION}a",
    )

    def connect(host: Host) -> Backend:
        return EbsBackend(config, setting(host))

    def foreign() -> None:
        """A volume of another driver, and one that somebody made by hand."""
        other = EbsBackend(config, replace(setting(LocalHost()), driver="other.example"))
        stamp = Stamp(driver="other.example", cluster="kit", name=f"theirs-{len(theirs)}", digest="")
        theirs.append(other.create_volume(VolumeRequest(stamp=stamp, size=SizeRange(required=GIB))).handle)
        theirs.append(cloud.client().create_volume(AvailabilityZone=f"{REGION}a", Size=1)["VolumeId"])

    def importable(data: bytes) -> str:
        made = str(cloud.client().create_volume(AvailabilityZone=f"{REGION}a", Size=SIZE // GIB)["VolumeId"])
        fake_ebs_blocks.write(cloud, made, 0, data)
        return made

    @contextmanager
    def away() -> Iterator[None]:
        """Every connection to EC2 breaks. Without Service Quotas no limit is known, which is an answer."""
        fault = cloud.drop("*", times=math.inf, when=lambda call: call.service == "ec2")
        try:
            yield
        finally:
            fault.times = 0

    def effect(handle: str) -> int:
        return int(cloud.client().describe_volumes(VolumeIds=[handle])["Volumes"][0]["Iops"])

    @contextmanager
    def together(handles: Collection[str]) -> Iterator[None]:
        attached = cloud.attach_missing(handles, instances[0])
        try:
            yield
        finally:
            cloud.detach_all(attached)

    theirs: list[str] = []
    foreign()
    nodes = tuple(
        Node(name=f"node-{number}", fact=instance, id=f"node-{number};kit={instance}")
        for number, instance in enumerate(instances, 1)
    )
    return Storage(
        connect=connect,
        parameters={"type": "gp3"},
        other_parameters={"type": "gp2"},
        mutable={"iops": "3000"},
        other_mutable={"iops": "4000", "throughput": "200"},
        size=SIZE,
        resources=cloud.everything,
        foreign=foreign,
        importable=importable,
        foreign_handles=tuple(theirs),
        nodes=nodes,
        reachable=({"zone": f"{REGION}a"},),
        unreachable=({"zone": "us-east-1a"},),
        away=away,
        effect=effect,
        together=together,
        read=lambda handle, offset, length: fake_ebs_blocks.read(cloud, handle, offset, length),
        write=lambda handle, offset, data: fake_ebs_blocks.write(cloud, handle, offset, data),
        damage=lambda handle: cloud.health.impair(handle, event="potential-data-inconsistency"),
        undamage=cloud.health.repair,
        calls=(Call(owner=Session, name="send", error=unreachable, timeout=silent),),
    )


def test_contract(csi_contract: Callable[[], None], request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["csi_contract"] in LEFT_OUT:
        pytest.skip("the quota counts volumes by their size, whatever they share")
    csi_contract()
