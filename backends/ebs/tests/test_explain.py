"""`csi-multi explain` shows the calls that a creation makes, and changes nothing in EC2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config
from csi_multi_ebs.explain import CREATES, PLACEHOLDER_ID, READS

from csi_multi.contract import DryRunReport, InvalidArgument, TopologyRequirement, Unpredictable, VolumeRequest

from .backend_requests import (
    GIB,
    A,
    B,
    SizeRange,
    parameters,
    setting,
    snapshot,
    snapshot_request,
    topology,
    volume,
    volume_request,
)
from .fake_ec2 import REGION, FakeEc2


def said(cloud: FakeEc2, since: int) -> list[tuple[str, dict[str, str]]]:
    """Return what changes arrived at EC2, with every word of them."""
    frame = ("Action", "Version")
    return [
        (call.action, {key: text for key, text in call.params.items() if key not in frame})
        for call in list(cloud.seen)[since:]
        if call.action in CREATES
    ]


def told(report: DryRunReport) -> list[tuple[str, dict[str, str]]]:
    """Return the changes that are told, in the same form."""
    steps = [step.words for step in report.steps if step.changes]
    return [(name, dict(flat("", msgspec.json.decode(words)))) for name, words in steps]


def flat(path: str, words: Any) -> Iterator[tuple[str, str]]:
    """Write words as EC2's wire has them: Tags: [{Key: a}] is Tag.1.Key=a."""
    if isinstance(words, dict):
        for key, word in words.items():
            yield from flat(f"{path}.{key}" if path else key, word)
    elif isinstance(words, list):
        for number, word in enumerate(words, 1):
            yield from flat(f"{path.removesuffix('s')}.{number}", word)
    else:
        yield path, str(words).lower() if isinstance(words, bool) else str(words)


def changes(cloud: FakeEc2, since: int) -> list[str]:
    return [call.action for call in list(cloud.seen)[since:] if not call.action.startswith("Describe")]


def make(backend: Any, request: VolumeRequest) -> Any:
    if request.source is None:
        return backend.create_volume(request)
    return (backend.restore_volume if request.source.kind.value == "snapshot" else backend.clone_volume)(request)


@pytest.fixture
def wishes(ebs: EbsBackend) -> dict[str, VolumeRequest]:
    """A request of every kind; what they are copied from is there."""
    source = ebs.create_volume(volume_request("source")).handle
    of = ebs.create_snapshot(snapshot_request("snapshot", source)).handle
    return {
        "create": volume_request(
            "pvc-1", size=SizeRange(required=10 * GIB + 1), parameters=parameters(type="gp3", iops="4000")
        ),
        "create in a place": volume_request(
            "pvc-1", topology=topology(A), metadata={"pvc/name": "data", "pvc/namespace": "shop"}
        ),
        "restore": volume_request("pvc-1", source=snapshot(of)),
        "clone": volume_request("pvc-1", source=volume(source)),
    }


@pytest.mark.parametrize("kind", ["create", "create in a place", "restore", "clone"])
def test_the_calls_that_are_told_are_those_of_a_creation(
    cloud: FakeEc2, ebs: EbsBackend, wishes: dict[str, VolumeRequest], kind: str
) -> None:
    report, before = DryRunReport(), len(cloud.seen)

    expected = make(ebs.dry_run(report), wishes[kind])
    assert changes(cloud, before) == []

    before = len(cloud.seen)
    made = make(ebs, wishes[kind])
    assert told(report) == said(cloud, before)
    assert replace(expected, handle=made.handle) == made
    assert expected.handle == PLACEHOLDER_ID


def test_looks_are_told_with_what_they_are_for(ebs: EbsBackend) -> None:
    report = DryRunReport()
    ebs.dry_run(report).create_volume(volume_request("pvc-1"))

    assert [(step.words[0], step.changes) for step in report.steps] == [
        ("DescribeAvailabilityZones", False),
        ("CreateVolume", True),
        ("DescribeVolumes", False),
    ]
    assert all(step.why for step in report.steps)


def test_what_ec2_would_refuse_is_refused(ebs: EbsBackend) -> None:
    with pytest.raises(InvalidArgument, match="iops"):
        ebs.dry_run(DryRunReport()).create_volume(
            volume_request("pvc-1", parameters=parameters(type="gp3", iops="999999"))
        )


@pytest.fixture
def laptop() -> EbsBackend:
    """A backend without any EC2: whoever asks finds nobody."""
    return EbsBackend(Config(region=REGION, endpoint="http://127.0.0.1:1"), setting())


def test_without_ec2_the_call_is_told_and_what_it_goes_by(laptop: EbsBackend) -> None:
    report = DryRunReport(offline=True)
    made = laptop.dry_run(report).create_volume(volume_request("pvc-1", topology=topology(B)))

    assert made.topology == ({"zone": B},)
    assert [name for name, *_ in told(report)] == ["CreateVolume"]
    assert B in report.assumed[0]


def test_without_ec2_a_copy_cannot_be_told(laptop: EbsBackend) -> None:
    with pytest.raises(Unpredictable, match="source"):
        laptop.dry_run(DryRunReport(offline=True)).clone_volume(
            volume_request("pvc-1", source=volume("vol-0123456789abcdef0"))
        )


def test_a_call_that_is_no_part_of_a_creation_is_not_made(laptop: EbsBackend) -> None:
    dry_run = laptop.dry_run(DryRunReport())

    with pytest.raises(Unpredictable, match="DeleteVolume"):
        dry_run._cache.client.delete_volume("vol-0123456789abcdef0")  # type: ignore[attr-defined]
    assert all(name.startswith("Describe") for name in READS)


def test_without_ec2_it_is_not_known_which_zone_an_id_means(laptop: EbsBackend) -> None:
    wanted = TopologyRequirement(requisite=({"zone-id": "euw1-az1"},))

    with pytest.raises(Unpredictable, match="'euw1-az1'"):
        laptop.dry_run(DryRunReport(offline=True)).create_volume(volume_request("pvc-1", topology=wanted))
