"""Volumes of the simulated EC2: tokens, quotas, zones, tags, copies, states, and deletion."""

from __future__ import annotations

import pytest

from .boto3_calls import ZONE, attach, look, make, refused, state
from .fake_ec2 import FOREVER, FakeEc2, looks, seconds


def tags(number: int) -> list[dict[str, object]]:
    return [{"ResourceType": "volume", "Tags": [{"Key": f"k{n}", "Value": "v"} for n in range(number)]}]


def test_a_token_makes_one_volume(cloud: FakeEc2) -> None:
    assert make(cloud, ClientToken="t", TagSpecifications=tags(2)) == make(
        cloud, ClientToken="t", TagSpecifications=tags(2)
    )
    assert len(cloud.everything()) == 1


def test_a_token_with_other_parameters_is_refused(cloud: FakeEc2) -> None:
    make(cloud, ClientToken="t")
    with refused("IdempotentParameterMismatch"):
        make(cloud, ClientToken="t", Size=2)


def test_a_repeated_token_answers_with_the_volume_as_it_is_now(cloud: FakeEc2) -> None:
    parameters = {"Size": 1, "AvailabilityZone": ZONE, "ClientToken": "t", "TagSpecifications": tags(2)}
    first = cloud.client().create_volume(**parameters)
    cloud.client().delete_tags(Resources=[first["VolumeId"]], Tags=[{"Key": "k0"}])
    again = cloud.client().create_volume(**parameters)
    assert (first["State"], again["State"]) == ("creating", "available")
    assert again["Tags"] == [{"Key": "k1", "Value": "v"}]


def test_a_token_of_a_deleted_volume_answers_as_it_did_then(cloud: FakeEc2) -> None:
    volume = make(cloud, ClientToken="t")
    cloud.client().delete_volume(VolumeId=volume)
    assert make(cloud, ClientToken="t") == volume
    assert cloud.everything() == ()


def test_a_burnt_token_names_a_volume_that_is_not_there(cloud: FakeEc2) -> None:
    volume = make(cloud, ClientToken="t")
    cloud.remove_created_with("t")
    assert make(cloud, ClientToken="t") == volume
    with refused("InvalidVolume.NotFound"):
        look(cloud, volume)


def test_a_refused_creation_leaves_the_token_unused(cloud: FakeEc2) -> None:
    cloud.limits.full_zones = {ZONE}
    with refused("InsufficientVolumeCapacity"):
        make(cloud, ClientToken="t")
    cloud.limits.full_zones.clear()
    make(cloud, ClientToken="t")


def test_tokens_of_copies_and_of_creations_are_apart(cloud: FakeEc2) -> None:
    source = make(cloud, ClientToken="t")
    ec2 = cloud.client()
    copies = [ec2.copy_volumes(SourceVolumeId=source, ClientToken="t")["Volumes"][0]["VolumeId"] for _ in range(2)]
    assert copies[0] == copies[1] != source
    with refused("IdempotentParameterMismatch"):
        ec2.copy_volumes(SourceVolumeId=source, ClientToken="t", Size=2)


def test_a_doomed_volume_ends_in_error_or_vanishes(cloud: FakeEc2) -> None:
    cloud.takes.creating = looks(1)
    cloud.fail_next_volume()
    cloud.fail_next_volume("vanish")
    broken, gone, good = make(cloud), make(cloud), make(cloud)
    assert state(cloud, gone) == "creating"
    assert (state(cloud, broken), state(cloud, good)) == ("error", "available")
    with refused("InvalidVolume.NotFound"):
        look(cloud, gone)
    cloud.client().delete_volume(VolumeId=broken)


def test_creation_takes_as_long_as_asked(cloud: FakeEc2) -> None:
    cloud.takes.creating = seconds(60)
    volume = make(cloud)
    assert state(cloud, volume) == "creating"
    with refused("IncorrectState"):
        cloud.client().delete_volume(VolumeId=volume)
    cloud.advance(60)
    assert state(cloud, volume) == "available"


def test_the_quota_refuses_even_what_is_done_already(cloud: FakeEc2) -> None:
    cloud.instances(3)
    cloud.limits.volumes = 1
    make(cloud, ClientToken="t")
    for token in ("t", "other"):
        with refused("VolumeLimitExceeded"):
            make(cloud, ClientToken=token)


def test_the_quota_counts_gigabytes_of_restores_and_copies_too(cloud: FakeEc2) -> None:
    ec2 = cloud.client()
    source = make(cloud, Size=4)
    snapshot = ec2.create_snapshot(VolumeId=source)["SnapshotId"]
    cloud.limits.gigabytes = 7
    with refused("VolumeLimitExceeded"):
        ec2.create_volume(SnapshotId=snapshot, AvailabilityZone=ZONE)
    with refused("VolumeLimitExceeded"):
        ec2.copy_volumes(SourceVolumeId=source)
    make(cloud, Size=3)


def test_a_full_zone_and_an_unknown_one_are_told_apart(cloud: FakeEc2) -> None:
    cloud.limits.full_zones = {ZONE}
    with refused("InsufficientVolumeCapacity", ZONE):
        make(cloud)
    with refused("InvalidZone.NotFound"):
        make(cloud, AvailabilityZone="eu-west-1z")
    make(cloud, AvailabilityZone="eu-west-1b")


def test_ec2_fills_in_what_its_types_have(cloud: FakeEc2) -> None:
    volume = look(cloud, make(cloud, Encrypted=True))
    assert (volume["Iops"], volume["Throughput"], volume["Encrypted"]) == (3000, 125, True)
    assert volume["KmsKeyId"].startswith("arn:aws:kms:")
    assert "Iops" not in look(cloud, make(cloud, VolumeType="st1", Size=125))


def test_too_many_or_unfit_tags_are_refused_and_leave_nothing(cloud: FakeEc2) -> None:
    with refused("TagLimitExceeded"):
        make(cloud, TagSpecifications=tags(51))
    for key, value in (("aws:x", "v"), ("k" * 129, "v"), ("k", "v" * 257)):
        with refused("InvalidParameterValue"):
            specification = {"ResourceType": "volume", "Tags": [{"Key": key, "Value": value}]}
            make(cloud, TagSpecifications=[specification])
    assert cloud.everything() == ()
    with refused("InvalidParameterValue", "aws:"):
        cloud.client().create_tags(Resources=[make(cloud)], Tags=[{"Key": "aws:x", "Value": "v"}])


def test_a_copy_is_as_large_as_its_source_or_larger_and_says_where_it_is_from(cloud: FakeEc2) -> None:
    source = make(cloud, Size=4, AvailabilityZone="eu-west-1b", Encrypted=True)
    (copied,) = cloud.client().copy_volumes(SourceVolumeId=source, VolumeType="gp3")["Volumes"]
    assert (copied["Size"], copied["State"], copied["AvailabilityZone"]) == (4, "creating", "eu-west-1b")
    assert look(cloud, copied["VolumeId"])["SourceVolumeId"] == source
    assert look(cloud, copied["VolumeId"])["Encrypted"]
    with refused("InvalidParameterValue"):
        cloud.client().copy_volumes(SourceVolumeId=source, Size=3)
    assert len(cloud.everything()) == 2


def test_a_copy_needs_a_source_that_is_there(cloud: FakeEc2) -> None:
    cloud.takes.creating = FOREVER
    source = make(cloud)
    with refused("IncorrectState", "creating"):
        cloud.client().copy_volumes(SourceVolumeId=source)
    with refused("InvalidVolume.NotFound", "vol-0"):
        cloud.client().copy_volumes(SourceVolumeId="vol-0")


def test_an_attached_volume_is_not_deleted(cloud: FakeEc2) -> None:
    (instance,) = cloud.instances()
    volume = make(cloud)
    attach(cloud, volume, instance)
    with refused("VolumeInUse", instance):
        cloud.client().delete_volume(VolumeId=volume)


@pytest.mark.parametrize("action", ["delete_volume", "attach_volume", "detach_volume", "modify_volume"])
def test_a_volume_that_is_not_there_is_named(cloud: FakeEc2, action: str) -> None:
    more = {"attach_volume": {"InstanceId": "i-0", "Device": "/dev/xvdba"}, "modify_volume": {"Size": 2}}
    with refused("InvalidVolume.NotFound", "'vol-0123456789abcdef0'"):
        getattr(cloud.client(), action)(VolumeId="vol-0123456789abcdef0", **more.get(action, {}))
