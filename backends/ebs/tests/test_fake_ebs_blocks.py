"""The simulated EBS: its blocks hold what was written, and its lists are as EBS's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from moto.ec2.models import EC2Backend

from . import fake_ebs_blocks
from .boto3_calls import attach, make, refused
from .fake_ebs_blocks import BLOCK
from .fake_ec2 import FakeEc2, seconds


@pytest.fixture
def volume(cloud: FakeEc2) -> str:
    return make(cloud)


def cut(cloud: FakeEc2, volume: str) -> str:
    made = str(cloud.client().create_snapshot(VolumeId=volume)["SnapshotId"])
    cloud.client().describe_snapshots(SnapshotIds=[made])
    return made


def listed(cloud: FakeEc2, snapshot: str, **more: Any) -> Any:
    return cloud.client("ebs").list_snapshot_blocks(SnapshotId=snapshot, **more)


def test_what_is_written_is_read_across_blocks(cloud: FakeEc2, volume: str) -> None:
    fake_ebs_blocks.write(cloud, volume, BLOCK - 2, b"data")

    assert fake_ebs_blocks.read(cloud, volume, BLOCK - 4, 8) == b"\0\0data\0\0"
    assert [one["BlockIndex"] for one in listed(cloud, cut(cloud, volume))["Blocks"]] == [0, 1]


def test_snapshots_and_copies_keep_the_data_of_their_moment(cloud: FakeEc2, volume: str) -> None:
    fake_ebs_blocks.write(cloud, volume, 0, b"old")
    snapshot = cut(cloud, volume)
    fake_ebs_blocks.write(cloud, volume, 0, b"new")
    restored = make(cloud, SnapshotId=snapshot)
    copied = cloud.client().copy_volumes(SourceVolumeId=volume)["Volumes"][0]["VolumeId"]
    fake_ebs_blocks.write(cloud, volume, 0, b"...")

    assert [fake_ebs_blocks.read(cloud, one, 0, 3) for one in (restored, copied)] == [b"old", b"new"]


def test_no_write_comes_between_the_cuts_of_a_group(cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes to two volumes in turn: a group that has the second write has the first, too."""
    volumes = [make(cloud), make(cloud)]
    (instance,) = cloud.instances(1)
    for volume, device in zip(volumes, ("/dev/xvdba", "/dev/xvdbb"), strict=True):
        attach(cloud, volume, instance, device)
    writes: list[threading.Thread] = []
    cut_one = EC2Backend.create_snapshot

    def create_snapshot(place: Any, volume: str, *words: Any) -> Any:
        made = cut_one(place, volume, *words)
        if not writes:
            others = [volume, *(one for one in volumes if one != volume)]
            writes.append(
                threading.Thread(target=lambda: [fake_ebs_blocks.write(cloud, one, 0, b"new") for one in others])
            )
            writes[0].start()
            writes[0].join(0.2)
        return made

    monkeypatch.setattr(EC2Backend, "create_snapshot", create_snapshot)
    cloud.client().create_snapshots(InstanceSpecification={"InstanceId": instance, "ExcludeBootVolume": True})
    writes[0].join()

    assert [fake_ebs_blocks.read(cloud, one, 0, 3) for one in volumes] == [b"new"] * 2
    found = cloud.client().describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert [listed(cloud, one["SnapshotId"])["Blocks"] for one in found] == [[], []]


def test_a_block_that_was_written_with_the_same_zeros_is_listed(cloud: FakeEc2, volume: str) -> None:
    fake_ebs_blocks.write(cloud, volume, 5 * BLOCK, b"\0")

    assert [one["BlockIndex"] for one in listed(cloud, cut(cloud, volume))["Blocks"]] == [5]


def test_lists_have_pages_whose_tokens_expire(cloud: FakeEc2, volume: str) -> None:
    for block in range(3):
        fake_ebs_blocks.write(cloud, volume, block * BLOCK, b"x")
    snapshot = cut(cloud, volume)
    cloud.block_pages.size = 2

    first = listed(cloud, snapshot)
    assert [one["BlockIndex"] for one in listed(cloud, snapshot, NextToken=first["NextToken"])["Blocks"]] == [2]
    assert [one["BlockIndex"] for one in listed(cloud, snapshot, StartingBlockIndex=2)["Blocks"]] == [2]
    cloud.block_pages.tokens.clear()
    with refused("ValidationException", "expired"):
        listed(cloud, snapshot, NextToken=first["NextToken"])


def test_a_snapshot_that_is_not_completed_and_one_that_is_not_there_are_refused(cloud: FakeEc2, volume: str) -> None:
    cloud.takes.snapshot = seconds(60)
    with refused("ValidationException", "not completed"):
        listed(cloud, cut(cloud, volume))
    with refused("ResourceNotFoundException"):
        listed(cloud, "snap-00000000000000000")


def test_createsnapshots_refuses_what_ec2_refuses(cloud: FakeEc2, volume: str) -> None:
    (instance,) = cloud.instances(1)
    attach(cloud, volume, instance)
    free, client = make(cloud), cloud.client()

    def create(**more: Any) -> Any:
        return client.create_snapshots(InstanceSpecification={"InstanceId": instance, **more})["Snapshots"]

    with refused("InvalidParameterValue", "not data volumes"):
        create(ExcludeDataVolumeIds=[free])
    with refused("InvalidParameterValue", "no volumes"):
        create(ExcludeBootVolume=True, ExcludeDataVolumeIds=[volume])
    assert len(create()) == 2  # the root volume, too
    assert [one["VolumeId"] for one in create(ExcludeBootVolume=True)] == [volume]
    cloud.terminate(instance)
    with refused("InvalidInstanceID.NotFound"):
        create()
