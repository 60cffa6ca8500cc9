"""The calls for groups, blocks and health, as EC2 and EBS answer them."""

from __future__ import annotations

import pytest
from csi_multi_ebs.client import Client
from csi_multi_ebs.errors import QuotaExceeded, UnrelatedSnapshots

from csi_multi.contract import InvalidArgument, InvalidToken, NotFound, PermissionDenied, Unavailable

from . import fake_ebs_blocks
from .backend_requests import backend_config
from .boto3_calls import attach, make
from .fake_ec2 import FakeEc2


@pytest.fixture
def ec2(cloud: FakeEc2) -> Client:
    return Client(backend_config(cloud))


def test_snapshots_of_an_instance_have_one_time_and_the_same_tags(ec2: Client, cloud: FakeEc2) -> None:
    (instance,) = cloud.instances(1)
    volumes = [make(cloud) for _ in range(3)]
    for volume, device in zip(volumes, ("/dev/xvdba", "/dev/xvdbb", "/dev/xvdbc"), strict=True):
        attach(cloud, volume, instance, device)

    found = ec2.create_snapshots(instance, volumes[2:], {"team": "db"}, "together")

    assert sorted(one.volume for one in found) == sorted(volumes[:2])
    assert len({one.created for one in found}) == 1
    assert [one.tags for one in found] == [{"team": "db"}] * 2
    assert {one.created for one in ec2.snapshots([one.id for one in found]).values()} == {found[0].created}


def test_it_is_sent_once(cloud: FakeEc2) -> None:
    (instance,) = cloud.instances(1)
    attach(cloud, make(cloud), instance)
    cloud.fail("CreateSnapshots", "InternalError", after_effect=True)

    with pytest.raises(Unavailable):
        Client(backend_config(cloud, max_attempts=5)).create_snapshots(instance, (), {}, "once")
    assert cloud.calls["CreateSnapshots"] == 1


def test_blocks_come_in_pages(ec2: Client, cloud: FakeEc2) -> None:
    volume = make(cloud)
    for block in range(5):
        fake_ebs_blocks.write(cloud, volume, block * fake_ebs_blocks.BLOCK, b"x")
    one = ec2.create_snapshot(volume, {"team": "db"}, "blocks")
    ec2.snapshots([one.id])
    cloud.block_pages.size = 3

    first = ec2.snapshot_blocks(one.id, 1, "")
    assert (first.blocks, first.block_size) == ((1, 2, 3), fake_ebs_blocks.BLOCK)
    assert ec2.snapshot_blocks(one.id, 0, first.token).blocks == (4,)
    assert ec2.changed_blocks(one.id, one.id, 0, "").blocks == ()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ValidationException UNRELATED_SNAPSHOTS", UnrelatedSnapshots),
        ("ValidationException INVALID_PAGE_TOKEN", InvalidToken),
        ("ValidationException INVALID_PARAMETER_VALUE", InvalidArgument),
        ("ValidationException", InvalidArgument),
        ("ResourceNotFoundException SNAPSHOT_NOT_FOUND", NotFound),
        ("ServiceQuotaExceededException DEPENDENCY_SERVICE_QUOTA_EXCEEDED", QuotaExceeded),
        ("InternalServerException", Unavailable),
        ("RequestThrottledException ACCOUNT_THROTTLED", Unavailable),
    ],
)
def test_what_ebs_refuses(ec2: Client, cloud: FakeEc2, code: str, kind: type[Exception]) -> None:
    cloud.fail("ListChangedBlocks", code)

    with pytest.raises(kind, match=code):
        ec2.changed_blocks("snap-00000000000000001", "snap-00000000000000002", 0, "")


def test_a_missing_right_is_named_as_iam_names_it(ec2: Client, cloud: FakeEc2) -> None:
    cloud.fail("ListSnapshotBlocks", "AccessDeniedException", status=403)

    with pytest.raises(PermissionDenied, match="ebs:ListSnapshotBlocks"):
        ec2.snapshot_blocks("snap-00000000000000001", 0, "")


def test_the_volumes_of_many_instances_are_found_in_several_calls(ec2: Client, cloud: FakeEc2) -> None:
    (instance,) = cloud.instances(1)
    mine, foreign = make(cloud), make(cloud)
    cloud.client().create_tags(Resources=[mine], Tags=[{"Key": "csi-multi/owner", "Value": "me"}])
    attach(cloud, mine, instance)
    attach(cloud, foreign, instance, "/dev/xvdbb")

    others = {f"i-{number:017x}" for number in range(200)}
    assert [one.id for one in ec2.volumes_attached_to({instance, *others}, "me")] == [mine]
    assert ec2.volumes_attached_to((), "me") == []
