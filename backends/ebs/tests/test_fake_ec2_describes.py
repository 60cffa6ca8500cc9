"""Describes of the simulated EC2: pages, unknown ids, and delayed results."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from .boto3_calls import attach, look, make, refused, state
from .fake_ec2 import FakeEc2, looks, seconds
from .fake_ec2_service import RULES


def pages(cloud: FakeEc2, **more: Any) -> list[list[str]]:
    found: list[list[str]] = []
    while True:
        page = cloud.client().describe_volumes(**more)
        found.append([volume["VolumeId"] for volume in page["Volumes"]])
        if "NextToken" not in page:
            return found
        assert len(page["NextToken"]) == 300
        more["NextToken"] = page["NextToken"]


def test_pages_hold_every_volume_once(cloud: FakeEc2) -> None:
    volumes = [make(cloud) for _ in range(12)]
    found = pages(cloud, MaxResults=5)
    assert [len(page) for page in found] == [5, 5, 2]
    assert sorted(each for page in found for each in page) == sorted(volumes)


def test_the_last_page_has_no_token_even_when_it_is_full(cloud: FakeEc2) -> None:
    for _ in range(10):
        make(cloud)
    assert [len(page) for page in pages(cloud, MaxResults=5)] == [5, 5]


def test_pages_hold_what_the_filter_lets_pass(cloud: FakeEc2) -> None:
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "owner", "Value": "me"}]}]
    mine = [make(cloud, TagSpecifications=tags) for _ in range(6)]
    for _ in range(6):
        make(cloud)
    found = pages(cloud, MaxResults=5, Filters=[{"Name": "tag:owner", "Values": ["me"]}])
    assert sorted(each for page in found for each in page) == sorted(mine)


def test_deletions_between_pages_lose_nothing_else(cloud: FakeEc2) -> None:
    volumes = sorted(make(cloud) for _ in range(10))
    first = cloud.client().describe_volumes(MaxResults=5)
    for volume in first["Volumes"]:
        cloud.client().delete_volume(VolumeId=volume["VolumeId"])
    (second,) = pages(cloud, MaxResults=5, NextToken=first["NextToken"])
    assert sorted(second) == volumes[5:]


def test_a_page_may_be_empty_and_not_the_last(cloud: FakeEc2) -> None:
    volume = make(cloud)
    cloud.describes.empty_pages = 2
    assert pages(cloud, MaxResults=5) == [[], [], [volume]]


def test_no_volumes_are_one_empty_page(cloud: FakeEc2) -> None:
    assert pages(cloud, MaxResults=5) == [[]]


def test_a_foreign_token_is_refused_and_so_is_one_of_another_question(cloud: FakeEc2) -> None:
    for _ in range(6):
        make(cloud)
    token = cloud.client().describe_volumes(MaxResults=5)["NextToken"]
    with refused("InvalidParameterValue", "nextToken"):
        pages(cloud, MaxResults=5, NextToken="nonsense")
    with refused("InvalidParameterValue", "nextToken"):
        pages(cloud, NextToken=token, Filters=[{"Name": "status", "Values": ["available"]}])
    with refused("InvalidParameterValue", "nextToken"):
        cloud.client().describe_snapshots(NextToken=token)


def test_pages_are_neither_tiny_nor_of_named_volumes(cloud: FakeEc2) -> None:
    with refused("InvalidParameterValue", "maxResults"):
        pages(cloud, MaxResults=4)
    with refused("InvalidParameterCombination"):
        pages(cloud, MaxResults=5, VolumeIds=[make(cloud)])


def test_snapshots_come_in_pages_too(cloud: FakeEc2) -> None:
    ec2, volume = cloud.client(), make(cloud)
    made = sorted(ec2.create_snapshot(VolumeId=volume)["SnapshotId"] for _ in range(6))
    first = ec2.describe_snapshots(MaxResults=5, OwnerIds=["self"])
    second = ec2.describe_snapshots(MaxResults=5, OwnerIds=["self"], NextToken=first["NextToken"])
    assert sorted(each["SnapshotId"] for each in first["Snapshots"] + second["Snapshots"]) == made


def test_all_ids_that_are_not_there_are_named_and_no_others(cloud: FakeEc2) -> None:
    there = make(cloud)
    with refused("InvalidVolume.NotFound", "The volumes 'vol-0, vol-1' do not exist."):
        cloud.client().describe_volumes(VolumeIds=["vol-0", there, "vol-1"])
    with refused("InvalidVolume.NotFound", "The volume 'vol-0' does not exist."):
        cloud.client().describe_volumes(VolumeIds=["vol-0", there])
    with refused("InvalidSnapshot.NotFound", "The snapshot 'snap-0' does not exist."):
        cloud.client().describe_snapshots(SnapshotIds=["snap-0"])


def test_a_question_has_its_limits(cloud: FakeEc2) -> None:
    with refused("FilterLimitExceeded"):
        pages(cloud, Filters=[{"Name": "tag:k", "Values": [str(n) for n in range(201)]}])
    with refused("InvalidParameterValue", "500"):
        pages(cloud, VolumeIds=[f"vol-{n}" for n in range(501)])


def test_what_was_created_appears_late_by_id_and_by_filter_and_in_pages(cloud: FakeEc2) -> None:
    cloud.takes.appearing = looks(3)
    volume = make(cloud)
    with refused("InvalidVolume.NotFound", volume):
        look(cloud, volume)
    assert pages(cloud, Filters=[{"Name": "status", "Values": ["available"]}]) == [[]]
    assert pages(cloud, MaxResults=5) == [[]]
    assert state(cloud, volume) == "available"


def test_what_was_deleted_lingers_as_deleting(cloud: FakeEc2) -> None:
    cloud.takes.vanishing = seconds(60)
    volume = make(cloud)
    cloud.client().delete_volume(VolumeId=volume)
    assert state(cloud, volume) == "deleting"
    assert pages(cloud, MaxResults=5) == [[volume]]
    assert cloud.everything() == ()
    with refused("InvalidVolume.NotFound"):
        cloud.client().delete_volume(VolumeId=volume)
    cloud.advance(60)
    assert pages(cloud) == [[]]


def test_snapshots_appear_and_vanish_late_too(cloud: FakeEc2) -> None:
    ec2 = cloud.client()
    cloud.takes.appearing = cloud.takes.vanishing = looks(1)
    snapshot = ec2.create_snapshot(VolumeId=make(cloud))["SnapshotId"]
    assert [len(ec2.describe_snapshots()["Snapshots"]) for _ in range(2)] == [0, 1]
    ec2.delete_snapshot(SnapshotId=snapshot)
    assert [len(ec2.describe_snapshots()["Snapshots"]) for _ in range(2)] == [1, 0]


def in_seconds(told: Any) -> Any:
    """Leave out what moto does: EC2 tells milliseconds."""
    if isinstance(told, dict):
        return {key: in_seconds(value) for key, value in told.items()}
    if isinstance(told, list):
        return [in_seconds(one) for one in told]
    return told.replace(microsecond=0) if isinstance(told, datetime) else told


def test_all_that_moto_says_is_said_and_nothing_else(cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2 = cloud.client()
    for instance in cloud.instances(2):
        attach(cloud, make(cloud, TagSpecifications=[_tagged("volume")]), instance)
    io2 = make(cloud, VolumeType="io2", Iops=100, Size=4, MultiAttachEnabled=True, Encrypted=True)
    named = ec2.create_snapshot(VolumeId=io2, Description="a <b> & 'c'", TagSpecifications=[_tagged("snapshot")])
    ec2.create_snapshot(VolumeId=io2)
    make(cloud, SnapshotId=named["SnapshotId"], Size=5, VolumeType="gp2", VolumeInitializationRate=100)
    ec2.copy_volumes(SourceVolumeId=io2)
    volumes, snapshots = ec2.describe_volumes()["Volumes"], ec2.describe_snapshots()["Snapshots"]
    for action in ("DescribeVolumes", "DescribeSnapshots"):
        monkeypatch.delitem(RULES, action)
    assert in_seconds(volumes) == in_seconds(ec2.describe_volumes()["Volumes"])
    assert in_seconds(snapshots) == in_seconds(ec2.describe_snapshots()["Snapshots"])


def _tagged(kind: str) -> dict[str, object]:
    return {"ResourceType": kind, "Tags": [{"Key": "a<b", "Value": "ü & 'v'"}, {"Key": "empty", "Value": ""}]}
