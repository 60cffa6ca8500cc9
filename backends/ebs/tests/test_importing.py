"""An EBS volume that was created by hand is imported with its data and its tags, and can be released."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_ebs.backend import EbsBackend, EbsDryRun
from csi_multi_ebs.importing import OTHER_DRIVERS

from csi_multi.contract import (
    IMPORTED,
    AlreadyExists,
    DryRunReport,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
    Stamp,
    StorageError,
)

from .backend_requests import (
    CLUSTER,
    DRIVER,
    GIB,
    A,
    Connect,
    attach_request,
    expand_request,
    nodes,
    tags,
    volume_request,
)
from .fake_ec2 import FakeEc2

ROOT = Path(__file__).parents[3]


def stamp(name: str = "old-data") -> Stamp:
    return Stamp(driver=DRIVER, cluster=CLUSTER, name=name, digest=IMPORTED, context={"fsType": "ext4"})


@pytest.fixture
def by_hand(cloud: FakeEc2) -> Callable[..., str]:
    """Make a volume as people do, with these tags."""

    def by_hand(**tags: str) -> str:
        given = [{"Key": key.replace("__", "/"), "Value": value} for key, value in {"Name": "data", **tags}.items()]
        specification = [{"ResourceType": "volume", "Tags": given}]
        made = cloud.client().create_volume(AvailabilityZone=A, Size=3, TagSpecifications=specification)
        return str(made["VolumeId"])

    return by_hand


def test_an_imported_volume_is_one_of_the_drivers(ebs: EbsBackend, by_hand: Callable[..., str], cloud: FakeEc2) -> None:
    id = by_hand()
    made = ebs.import_volume(id, stamp())

    assert made == ebs.get_volume(id) == ebs.find_volume("old-data")
    assert (made.handle, made.size, made.topology) == (id, 3 * GIB, ({"zone": A},))
    assert tags(cloud, id)["Name"] == "data"


def test_it_is_never_deleted_and_says_how_to_release_it(ebs: EbsBackend, by_hand: Callable[..., str]) -> None:
    id = by_hand()
    ebs.import_volume(id, stamp())

    with pytest.raises(FailedPrecondition, match="csi-multi import --release"):
        ebs.delete_volume(id, {})
    assert ebs.get_volume(id).stamp.imported


def test_a_released_volume_has_the_tags_it_had(ebs: EbsBackend, by_hand: Callable[..., str], cloud: FakeEc2) -> None:
    id = by_hand(team="shop")
    before = tags(cloud, id)
    ebs.import_volume(id, stamp())

    assert ebs.release_volume(id) == id
    assert tags(cloud, id) == before
    with pytest.raises(FailedPrecondition, match="does not belong to this driver"):
        ebs.get_volume(id)


def test_importing_it_again_is_the_same_volume(connect: Connect, by_hand: Callable[..., str], cloud: FakeEc2) -> None:
    id = by_hand()
    made = connect().import_volume(id, stamp())
    calls = cloud.calls["CreateTags"]

    assert connect().import_volume(id, stamp()) == made
    assert cloud.calls["CreateTags"] == calls


def test_it_is_never_formatted(ebs: EbsBackend, by_hand: Callable[..., str], cloud: FakeEc2) -> None:
    made, (node,) = ebs.import_volume(by_hand(), stamp()), nodes(cloud)

    assert ebs.attach(attach_request(node, made))["blank"] == "never"


def test_it_can_grow(ebs: EbsBackend, by_hand: Callable[..., str]) -> None:
    made = ebs.import_volume(by_hand(), stamp())

    assert ebs.expand_volume(expand_request(made, 5)).size == 5 * GIB
    assert ebs.get_volume(made.handle).stamp == made.stamp


def test_a_volume_of_the_drivers_own_is_neither_imported_nor_released(ebs: EbsBackend) -> None:
    made = ebs.create_volume(volume_request("pvc-1"))

    with pytest.raises(AlreadyExists, match="belongs to"):
        ebs.import_volume(made.handle, stamp())
    with pytest.raises(FailedPrecondition, match="not imported"):
        ebs.release_volume(made.handle)
    assert ebs.get_volume(made.handle) == made


@pytest.mark.parametrize(
    ("tagged", "kind", "words"),
    [
        ({"ebs.csi.aws.com__cluster": "true"}, FailedPrecondition, "aws-ebs-csi-driver"),
        ({"csi-multi__owner": "other/prod/cloud"}, AlreadyExists, "other/prod/cloud"),
    ],
)
def test_what_is_another_drivers_is_refused_and_left_alone(
    ebs: EbsBackend,
    by_hand: Callable[..., str],
    cloud: FakeEc2,
    tagged: dict[str, str],
    kind: type[StorageError],
    words: str,
) -> None:
    id = by_hand(**tagged)
    before = tags(cloud, id)

    with pytest.raises(kind, match=words):
        ebs.import_volume(id, stamp())
    assert tags(cloud, id) == before


def test_a_volume_of_aws_ebs_csi_driver_moves_here_and_back(
    ebs: EbsBackend, by_hand: Callable[..., str], cloud: FakeEc2
) -> None:
    (told,) = re.findall(r"aws ec2 delete-tags .*", (ROOT / "docs/coming-from-aws-ebs.md").read_text())
    theirs = re.findall(r"Key=(\S+)", told)
    id = by_hand(**{key.replace("/", "__"): "x" for key in theirs}, team="shop")
    assert sorted(theirs) == sorted(OTHER_DRIVERS)

    for left in range(len(theirs)):
        with pytest.raises(FailedPrecondition, match=re.escape(repr(theirs[left]))):
            ebs.import_volume(id, stamp())
        cloud.client().delete_tags(Resources=[id], Tags=[{"Key": theirs[left]}])
    before = tags(cloud, id)
    made = ebs.import_volume(id, stamp())

    assert before.items() < tags(cloud, id).items()
    assert ebs.release_volume(made.handle) == id
    assert tags(cloud, id) == before == {"Name": "data", "team": "shop"}


def test_a_volume_that_is_attached_is_refused(ebs: EbsBackend, by_hand: Callable[..., str], cloud: FakeEc2) -> None:
    id, (node,) = by_hand(), nodes(cloud)
    cloud.client().attach_volume(VolumeId=id, InstanceId=node.fact, Device="/dev/xvdf")

    with pytest.raises(InUse, match=node.fact):
        ebs.import_volume(id, stamp())


def test_an_imported_volume_that_is_attached_is_not_released(
    ebs: EbsBackend, by_hand: Callable[..., str], cloud: FakeEc2
) -> None:
    made, (node,) = ebs.import_volume(by_hand(), stamp()), nodes(cloud)
    ebs.attach(attach_request(node, made))

    with pytest.raises(InUse, match=node.fact):
        ebs.release_volume(made.handle)
    assert ebs.get_volume(made.handle).stamp == made.stamp


def test_a_name_that_another_volume_has_is_refused(ebs: EbsBackend, by_hand: Callable[..., str]) -> None:
    ebs.create_volume(volume_request("old-data"))

    with pytest.raises(AlreadyExists, match="choose another"):
        ebs.import_volume(by_hand(), stamp())


@pytest.mark.parametrize(
    ("id", "kind"), [("vol-00000000000000000", NotFound), ("snap-0123456789abcdef0", InvalidArgument)]
)
def test_what_is_no_volume_is_told_as_such(ebs: EbsBackend, id: str, kind: type[StorageError]) -> None:
    with pytest.raises(kind):
        ebs.import_volume(id, stamp())


def test_what_would_be_done_is_told_and_not_done(ebs: EbsBackend, by_hand: Callable[..., str], cloud: FakeEc2) -> None:
    id, report = by_hand(), DryRunReport()
    before = tags(cloud, id)
    dry_run: Any = ebs.dry_run(report)
    assert isinstance(dry_run, EbsDryRun)

    expected = dry_run.import_volume(id, stamp())
    assert tags(cloud, id) == before
    (step,) = (step for step in report.steps if step.changes)
    words = msgspec.json.decode(step.words[1])

    assert ebs.import_volume(id, stamp()) == expected
    assert step.words[0] == "CreateTags"
    assert words["Resources"] == [id]
    assert {**before, **{tag["Key"]: tag["Value"] for tag in words["Tags"]}} == tags(cloud, id)


def test_a_release_is_told_and_not_done(ebs: EbsBackend, by_hand: Callable[..., str], cloud: FakeEc2) -> None:
    id, report = by_hand(), DryRunReport()
    ebs.import_volume(id, stamp())
    before = tags(cloud, id)
    dry_run: Any = ebs.dry_run(report)

    dry_run.release_volume(id)

    assert [step.words[0] for step in report.steps if step.changes] == ["DeleteTags"]
    assert tags(cloud, id) == before
