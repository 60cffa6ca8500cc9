"""The calls that only some classes ask for, as EC2 gets them: botocore checks their form."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from csi_multi_ebs.client import Client
from csi_multi_ebs.resources import Ec2Initialization, SnapshotLock

from csi_multi.contract import InvalidArgument, NotFound

from .backend_requests import backend_config
from .fake_ec2 import FakeEc2

UNKNOWN = f"vol-{'0' * 17}"


@pytest.fixture
def ec2(cloud: FakeEc2) -> Iterator[Client]:
    client = Client(backend_config(cloud))
    yield client
    client.close()


@pytest.fixture
def snapshot(cloud: FakeEc2) -> str:
    volume = cloud.client().create_volume(AvailabilityZone="eu-west-1a", Size=1)["VolumeId"]
    cloud.client().describe_volumes()
    return str(cloud.client().create_snapshot(VolumeId=volume)["SnapshotId"])


def test_a_lock_is_sent_with_what_the_class_sets_and_no_more(ec2: Client, cloud: FakeEc2, snapshot: str) -> None:
    ec2.lock_snapshot(snapshot, SnapshotLock(mode="governance", days=7))
    sent = cloud.seen[-1].params

    assert {key: sent.get(key) for key in ("SnapshotId", "LockMode", "LockDuration")} == {
        "SnapshotId": snapshot,
        "LockMode": "governance",
        "LockDuration": "7",
    }
    assert not {"ExpirationDate", "CoolOffPeriod"} & sent.keys()


def test_a_lock_that_a_snapshot_has_is_read(ec2: Client, snapshot: str) -> None:
    ends = datetime(2130, 12, 31, tzinfo=UTC)
    assert ec2.snapshot_lock(snapshot) is None

    ec2.lock_snapshot(snapshot, SnapshotLock(mode="compliance", until=ends, cool_off_hours=24))
    found = ec2.snapshot_lock(snapshot)

    assert found is not None
    assert (found.state, found.expires) == ("compliance-cooloff", ends)


def test_a_lock_that_ec2_refuses_is_an_error_of_the_request(ec2: Client, snapshot: str) -> None:
    with pytest.raises(InvalidArgument):
        ec2.lock_snapshot(snapshot, SnapshotLock(mode="governance"))
    with pytest.raises(NotFound):
        ec2.lock_snapshot(f"snap-{'0' * 17}", SnapshotLock(mode="governance", days=1))


def test_the_state_of_many_volumes_is_read_although_ec2_refuses_the_call_for_one(ec2: Client, cloud: FakeEc2) -> None:
    made = [cloud.client().create_volume(AvailabilityZone="eu-west-1a", Size=1)["VolumeId"] for _ in range(2)]

    found = ec2.initializations([made[0], UNKNOWN, "not an id", made[1]])

    assert found == {id: Ec2Initialization(done=True) for id in made}
    assert ec2.initializations([UNKNOWN]) == {}
