"""EC2's resources as typed values, read from responses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from csi_multi_ebs.client import Client
from csi_multi_ebs.config import Config
from csi_multi_ebs.labels import NAME, OWNER
from csi_multi_ebs.resources import Ec2Volume
from csi_multi_ebs.volume_types import NewVolume, VolumeSpec

from .fake_ec2 import FakeEc2

OURS = "multi.csi.example.com/prod/cloud"


ZONE = "eu-west-1a"


GONE = "vol-00000000000000000"


SPEC = VolumeSpec(type="gp3", size=10)


TAGS = {OWNER: OURS, NAME: "pvc-1"}


def connect(cloud: FakeEc2, **config: object) -> Client:
    return Client(Config(region=cloud.region, endpoint=cloud.endpoint, **({"max_attempts": 1} | config)))  # type: ignore[arg-type]


@pytest.fixture
def ec2(cloud: FakeEc2) -> Iterator[Client]:
    """EC2 asked once per call."""
    ec2 = connect(cloud)
    yield ec2
    ec2.close()


def make(ec2: Client, name: str = "pvc-1", owner: str = OURS) -> Ec2Volume:
    return ec2.create_volume(NewVolume(spec=SPEC, tags={OWNER: owner, NAME: name}), ZONE, name)


def test_a_volume_is_made_as_it_was_specified(ec2: Client, cloud: FakeEc2) -> None:
    spec = VolumeSpec(type="gp3", size=10, iops=4000, throughput=200)
    made = ec2.create_volume(
        NewVolume(spec=spec, tags={NAME: "pvc-1"}, encrypted=True, kms_key="alias/k", multi_attach=False), ZONE, "t1"
    )

    row = ec2.volumes([made.id])[made.id]
    assert (row.size, row.type, row.zone, row.iops, row.throughput) == (10, "gp3", ZONE, 4000, 200)
    assert row.tags == {NAME: "pvc-1"}
    assert (row.state, row.attachments, row.snapshot) == ("available", (), "")
    assert row.created.tzinfo is not None
    sent = cloud.seen[0]
    assert (sent.get("Encrypted"), sent.get("KmsKeyId"), sent.get("ClientToken")) == ("true", "alias/k", "t1")


def test_instances_are_found_with_their_devices(ec2: Client, cloud: FakeEc2) -> None:
    (node,) = cloud.instances(1, type="m5.large", zone=ZONE)
    volume = make(ec2)
    ec2.volumes([volume.id])
    ec2.attach(volume.id, node, "/dev/xvdba")
    ec2.tag([node], {"csi-multi/node/x": "node-1"})

    row = ec2.instances([node, "i-00000000000000000"])[node]

    assert (row.state, row.type, row.zone) == ("running", "m5.large", ZONE)
    assert row.devices["/dev/xvdba"] == volume.id
    assert row.tags["csi-multi/node/x"] == "node-1"


def test_the_last_change_of_each_volume_is_found_and_none_spoils_others(ec2: Client, cloud: FakeEc2) -> None:
    changed, untouched = make(ec2, "a").id, make(ec2, "b").id
    ec2.volumes([changed, untouched])
    ec2.modify(changed, VolumeSpec(type="gp3", size=20))
    ec2.modifications([changed])
    cloud.advance(7 * 3600)
    ec2.modify(changed, VolumeSpec(type="gp3", size=0, iops=5000))

    found = ec2.modifications([changed, untouched, GONE])

    assert found.keys() == {changed}
    assert (found[changed].size, found[changed].iops) == (20, 5000)


def test_snapshots_are_made_found_listed_and_deleted(ec2: Client, cloud: FakeEc2) -> None:
    one, two = make(ec2, "a").id, make(ec2, "b").id
    ec2.volumes([one, two])
    made = [ec2.create_snapshot(volume, {OWNER: OURS, NAME: f"s-{volume}"}, "of a test") for volume in (one, two)]

    found = ec2.snapshots([made[0].id, "snap-00000000000000000"])
    (by_name,) = ec2.snapshots_tagged(NAME, [f"s-{one}"], OURS)
    page, token = ec2.snapshot_page(OURS, 0, "")
    of_two, _ = ec2.snapshot_page(OURS, 0, "", two)

    row = found[made[0].id]
    assert found.keys() == {made[0].id}
    assert (row.volume, row.size, row.state) == (one, 10, "completed")
    assert row.created == made[0].created
    assert by_name.id == made[0].id
    assert ({row.id for row in page}, token) == ({row.id for row in made}, "")
    assert [row.id for row in of_two] == [made[1].id]
    for row in made:
        ec2.delete_snapshot(row.id)
    assert ec2.snapshots([row.id for row in made]) == {}
