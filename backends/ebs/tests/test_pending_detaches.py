"""Detachments that do not end are shown, from the rows that are read anyway."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from csi_multi_ebs import pending_detaches
from csi_multi_ebs.pending_detaches import FORGOTTEN_SECONDS, LEAST_SECONDS, PendingDetaches
from csi_multi_ebs.resources import Ec2Attachment, Ec2Volume

from csi_multi.contract import MetricKind, PageRequest, Unavailable

from .backend_requests import A, Connect, attach_request, nodes, volume_request
from .fake_ec2 import FOREVER, FakeEc2

ONE, TWO = "i-0123456789abcdef0", "i-0123456789abcdef1"
VOLUME = Ec2Volume(
    id="vol-0123456789abcdef0", state="in-use", size=1, zone="a", type="gp3", created=datetime(2026, 1, 1, tzinfo=UTC)
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pending_detaches, "time", clock)
    return clock


@pytest.fixture
def pending() -> PendingDetaches:
    return PendingDetaches()


def shown(**states: str) -> Ec2Volume:
    """The row of the volume: one="detaching", two="attached"."""
    instances = {"one": ONE, "two": TWO}
    return replace(
        VOLUME,
        attachments=tuple(
            Ec2Attachment(instance=instances[name], device="/dev/xvdba", state=state) for name, state in states.items()
        ),
    )


def test_the_manual_has_the_metric(clock: Clock, pending: PendingDetaches) -> None:
    pending.note([shown(one="detaching")])
    clock.now += LEAST_SECONDS
    pending.note([shown(one="detaching")])
    text = (Path(__file__).parents[3] / "docs/ebs.md").read_text()

    assert [f"`csi_multi_ebs_{one.metric_name}`" in text for one in pending.metrics()] == [True]


def values(pending: PendingDetaches) -> dict[tuple[str, str], float]:
    """Seconds by instance and state."""
    return {(one.labels["instance_id"], one.labels["attachment_state"]): one.value for one in pending.metrics()}


def test_a_detachment_is_shown_once_it_takes_long(clock: Clock, pending: PendingDetaches) -> None:
    pending.note([shown(one="detaching")])
    clock.now += LEAST_SECONDS - 1
    pending.note([shown(one="detaching")])
    assert values(pending) == {}

    clock.now += 1
    pending.note([shown(one="busy")])
    (metric,) = pending.metrics()
    assert (metric.metric_name, metric.kind, metric.handle) == ("detach_pending_seconds", MetricKind.GAUGE, VOLUME.id)
    assert values(pending) == {(ONE, "busy"): LEAST_SECONDS}


def test_its_age_is_that_of_the_last_row(clock: Clock, pending: PendingDetaches) -> None:
    pending.note([shown(one="detaching")])
    clock.now += LEAST_SECONDS
    pending.note([shown(one="detaching")])
    clock.now += 100

    assert values(pending) == {(ONE, "detaching"): LEAST_SECONDS}


@pytest.mark.parametrize("end", [shown(), shown(one="attached"), shown(one="detached")])
def test_what_has_ended_is_shown_no_more(clock: Clock, pending: PendingDetaches, end: Ec2Volume) -> None:
    pending.note([shown(one="detaching")])
    clock.now += LEAST_SECONDS
    pending.note([shown(one="detaching")])
    pending.note([end])
    assert values(pending) == {}

    pending.note([shown(one="detaching")])  # another one begins
    assert values(pending) == {}


def test_each_instance_of_a_volume_has_a_time_of_its_own(clock: Clock, pending: PendingDetaches) -> None:
    pending.note([shown(one="detaching", two="attached")])
    clock.now += 10
    pending.note([shown(one="detaching", two="detaching")])
    clock.now += LEAST_SECONDS
    pending.note([shown(one="detaching", two="detaching")])

    assert values(pending) == {(ONE, "detaching"): LEAST_SECONDS + 10, (TWO, "detaching"): LEAST_SECONDS}


def test_a_volume_that_nobody_looks_at_any_more_is_forgotten(clock: Clock, pending: PendingDetaches) -> None:
    pending.note([shown(one="detaching")])
    clock.now += LEAST_SECONDS
    pending.note([shown(one="detaching")])
    clock.now += FORGOTTEN_SECONDS + 1

    assert values(pending) == {}


def test_a_detachment_that_hangs_is_shown_without_a_call_of_its_own(
    connect: Connect, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_detaches, "LEAST_SECONDS", 0)
    ebs, node = connect(wait_seconds=1.0, zones=(A,)), nodes(cloud)[0]
    volume = ebs.create_volume(volume_request("v"))
    ebs.attach(attach_request(node, volume))
    cloud.takes.detaching = FOREVER
    with pytest.raises(Unavailable, match="still being detached"):
        ebs.detach(volume.handle, node, {})
    ebs.get_volume(volume.handle)  # whoever reads a row
    calls = len(cloud.seen)

    (metric,) = (one for one in ebs.metrics(()) if one.metric_name == "detach_pending_seconds")
    assert (metric.handle, metric.labels["instance_id"]) == (volume.handle, node.fact)
    assert len(cloud.seen) == calls


def test_a_listing_shows_that_it_has_ended(connect: Connect, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_detaches, "LEAST_SECONDS", 0)
    ebs, node = connect(wait_seconds=1.0, zones=(A,)), nodes(cloud)[0]
    volume = ebs.create_volume(volume_request("v"))
    ebs.attach(attach_request(node, volume))
    cloud.takes.detaching = FOREVER
    with pytest.raises(Unavailable):
        ebs.detach(volume.handle, node, {})
    ebs.list_volumes(PageRequest(cursor="", limit=0))
    assert volume.handle in {one.handle for one in ebs.metrics(())}

    cloud.client().detach_volume(VolumeId=volume.handle, Force=True)
    ebs.list_volumes(PageRequest(cursor="", limit=0))
    assert volume.handle not in {one.handle for one in ebs.metrics(())}
