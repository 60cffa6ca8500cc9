"""Changes and snapshots of the simulated EC2."""

from __future__ import annotations

from typing import Any

from .boto3_calls import ZONE, look, make, refused
from .fake_ec2 import FakeEc2, looks, seconds

DAY = 24 * 3600


def change(cloud: FakeEc2, volume: str, **more: Any) -> Any:
    return cloud.client().modify_volume(VolumeId=volume, **more)["VolumeModification"]


def progress(cloud: FakeEc2, volume: str) -> Any:
    (found,) = cloud.client().describe_volumes_modifications(VolumeIds=[volume])["VolumesModifications"]
    return found


def test_a_change_goes_through_its_states_and_shows_the_new_size_from_optimizing_on(cloud: FakeEc2) -> None:
    cloud.takes.modifying = looks(1)
    cloud.takes.optimizing = looks(1)
    volume = make(cloud)
    assert change(cloud, volume, Size=5)["ModificationState"] == "modifying"
    states = []
    for _ in range(3):
        size = look(cloud, volume)["Size"]
        found = progress(cloud, volume)
        states.append((found["ModificationState"], found["Progress"], size))
    assert states == [("modifying", 0, 1), ("optimizing", 50, 5), ("completed", 100, 5)]


def test_a_change_names_all_that_was_and_will_be(cloud: FakeEc2) -> None:
    volume = make(cloud, VolumeType="gp2")
    found = change(cloud, volume, VolumeType="gp3", Iops=4000)
    assert (found["OriginalVolumeType"], found["OriginalSize"]) == ("gp2", 1)
    assert (found["TargetVolumeType"], found["TargetSize"]) == ("gp3", 1)
    assert (found["TargetIops"], found["TargetThroughput"]) == (4000, 125)
    assert (look(cloud, volume)["Iops"], look(cloud, volume)["Throughput"]) == (4000, 125)
    change(cloud, volume, VolumeType="st1", Size=125)
    assert "Throughput" not in look(cloud, volume)


def test_one_change_at_a_time(cloud: FakeEc2) -> None:
    cloud.takes.optimizing = seconds(60)
    volume = make(cloud)
    change(cloud, volume, Size=2)
    with refused("IncorrectModificationState", "OPTIMIZING"):
        change(cloud, volume, Size=3)
    cloud.advance(60)
    change(cloud, volume, Size=3)


def test_few_changes_a_day(cloud: FakeEc2) -> None:
    cloud.limits.modifications = 2
    volume = make(cloud)
    for size in (2, 3):
        change(cloud, volume, Size=size)
    with refused("VolumeModificationRateExceeded"):
        change(cloud, volume, Size=4)
    cloud.advance(DAY)
    change(cloud, volume, Size=4)


def test_a_volume_never_shrinks(cloud: FakeEc2) -> None:
    volume = make(cloud, Size=5)
    with refused("InvalidParameterValue", "smaller"):
        change(cloud, volume, Size=4)


def test_only_the_latest_change_is_told_and_one_that_never_was_is_missed(cloud: FakeEc2) -> None:
    changed, unchanged = make(cloud), make(cloud)
    change(cloud, changed, Size=2)
    change(cloud, changed, Size=3)
    assert progress(cloud, changed)["TargetSize"] == 3
    with refused("InvalidVolumeModification.NotFound", unchanged):
        cloud.client().describe_volumes_modifications(VolumeIds=[changed, unchanged])


def test_a_snapshot_is_pending_for_as_long_as_asked_and_nothing_is_made_from_it_meanwhile(cloud: FakeEc2) -> None:
    ec2 = cloud.client()
    cloud.takes.snapshot = seconds(60)
    snapshot = ec2.create_snapshot(VolumeId=make(cloud))
    assert (snapshot["State"], snapshot["Progress"]) == ("pending", "0%")
    with refused("IncorrectState", "pending"):
        ec2.create_volume(SnapshotId=snapshot["SnapshotId"], AvailabilityZone=ZONE)
    cloud.advance(60)
    (found,) = ec2.describe_snapshots(SnapshotIds=[snapshot["SnapshotId"]])["Snapshots"]
    assert (found["State"], found["Progress"]) == ("completed", "100%")


def test_a_snapshot_keeps_its_size_and_outlives_its_volume(cloud: FakeEc2) -> None:
    ec2 = cloud.client()
    volume = make(cloud, Size=2)
    snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    change(cloud, volume, Size=5)
    ec2.delete_volume(VolumeId=volume)
    (found,) = ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]
    assert (found["VolumeSize"], found["VolumeId"]) == (2, volume)
    with refused("InvalidParameterValue", "smaller"):
        ec2.create_volume(SnapshotId=snapshot, AvailabilityZone=ZONE, Size=1)
    restored = ec2.create_volume(SnapshotId=snapshot, AvailabilityZone=ZONE, VolumeInitializationRate=100)
    assert (restored["Size"], restored["SnapshotId"]) == (2, snapshot)
    assert look(cloud, restored["VolumeId"])["VolumeInitializationRate"] == 100


def test_a_snapshot_that_is_not_there_is_named(cloud: FakeEc2) -> None:
    ec2 = cloud.client()
    with refused("InvalidSnapshot.NotFound", "snap-0"):
        ec2.delete_snapshot(SnapshotId="snap-0")
    with refused("InvalidSnapshot.NotFound", "snap-0"):
        ec2.create_volume(SnapshotId="snap-0", AvailabilityZone=ZONE)


def test_fast_restores_are_written_down(cloud: FakeEc2) -> None:
    ec2 = cloud.client()
    snapshot = ec2.create_snapshot(VolumeId=make(cloud))["SnapshotId"]
    zones = ["eu-west-1a", "eu-west-1b"]
    done = ec2.enable_fast_snapshot_restores(AvailabilityZones=zones, SourceSnapshotIds=[snapshot, "snap-0"])
    assert cloud.fast_restores == {snapshot: set(zones)}
    assert [each["State"] for each in done["Successful"]] == ["enabling", "enabling"]
    (failed,) = done["Unsuccessful"]
    assert failed["FastSnapshotRestoreStateErrors"][0]["Error"]["Code"] == "InvalidSnapshot.NotFound"
