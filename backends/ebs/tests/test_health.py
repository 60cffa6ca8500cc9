"""Health of volumes by EC2's own checks: of one volume, and of all in as many calls as EC2 has pages."""

from __future__ import annotations

from functools import partial

import pytest
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import Health, HealthEntry, InvalidToken, NotFound, PageRequest, VolumeHealth

from .backend_requests import GONE, Connect, attach_request, nodes, row, volume_request
from .fake_ec2 import FakeEc2
from .thread_helpers import run_together


def listed(ebs: EbsBackend, limit: int = 0) -> list[VolumeHealth]:
    page = ebs.list_volume_health(PageRequest(limit=limit), {})
    found = list(page.items)
    while page.cursor:
        page = ebs.list_volume_health(PageRequest(cursor=page.cursor, limit=limit), {})
        found += page.items
    return found


def said(entries: tuple[HealthEntry, ...]) -> list[tuple[Health, str]]:
    return [(one.status, one.reason) for one in entries]


@pytest.mark.parametrize(
    ("found", "entry"),
    [
        ({"io": "failed"}, (Health.INACCESSIBLE, "IODisabled")),
        ({"io": "passed", "performance": "stalled"}, (Health.INACCESSIBLE, "IOStalled")),
        ({"io": "passed", "performance": "degraded", "status": "warning"}, (Health.DEGRADED, "PerformanceDegraded")),
        (
            {"io": "passed", "performance": "severely-degraded", "status": "warning"},
            (Health.DEGRADED, "PerformanceSeverelyDegraded"),
        ),
        ({"io": "passed"}, (Health.DEGRADED, "VolumeImpaired")),
    ],
)
def test_what_ec2_finds_wrong_is_reported_alone_and_in_the_list(
    ebs: EbsBackend, cloud: FakeEc2, found: dict[str, str], entry: tuple[Health, str]
) -> None:
    one, other = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))
    cloud.health.impair(one.handle, event="potential-data-inconsistency", **found)

    entries = ebs.volume_health(one.handle, {})
    assert said(entries) == [entry]
    assert one.handle in entries[0].message
    assert "potential-data-inconsistency" in entries[0].message
    assert ebs.volume_health(other.handle, {}) == ()
    assert listed(ebs) == [VolumeHealth(handle=one.handle, entries=entries)]
    cloud.health.repair(one.handle)
    assert ebs.volume_health(one.handle, {}) == ()
    assert listed(ebs) == []


def test_what_ec2_does_not_know_yet_is_no_problem(ebs: EbsBackend, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    cloud.health.impair(made.handle, status="insufficient-data", io="insufficient-data")

    assert ebs.volume_health(made.handle, {}) == ()
    assert listed(ebs) == []


def test_a_volume_that_ec2_gave_up_is_lost(ebs: EbsBackend, cloud: FakeEc2) -> None:
    made = ebs.create_volume(volume_request())
    row(cloud, made.handle).phase = "error"

    assert said(ebs.volume_health(made.handle, {})) == [(Health.DATA_LOSS, "VolumeFailed")]
    assert [one.handle for one in listed(ebs)] == [made.handle]


def test_volumes_of_an_instance_that_does_not_reach_them_are_not_accessible(ebs: EbsBackend, cloud: FakeEc2) -> None:
    one, two, free = (ebs.create_volume(volume_request(f"pvc-{number}")) for number in range(3))
    first, second = nodes(cloud, 2)
    ebs.attach(attach_request(first, one))
    ebs.attach(attach_request(second, two))
    cloud.health.cut_off.add(first.fact)

    assert said(ebs.volume_health(one.handle, {})) == [(Health.INACCESSIBLE, "InstanceCutOff")]
    assert first.fact in ebs.volume_health(one.handle, {})[0].message
    assert [one.handle for one in listed(ebs)] == [one.handle]
    for healthy in (two, free):
        assert ebs.volume_health(healthy.handle, {}) == ()


def test_the_list_has_no_volumes_of_other_owners(connect: Connect, ebs: EbsBackend, cloud: FakeEc2) -> None:
    foreign = cloud.client().create_volume(AvailabilityZone="eu-west-1a", Size=1)["VolumeId"]
    theirs = connect("other").create_volume(volume_request("theirs"))
    (node,) = nodes(cloud)
    cloud.client().attach_volume(VolumeId=foreign, InstanceId=node.fact, Device="/dev/xvdba")
    cloud.health.cut_off.add(node.fact)
    cloud.health.impair(foreign)
    cloud.health.impair(theirs.handle)

    assert listed(ebs) == []


def test_the_list_costs_no_call_per_volume_and_is_read_in_pages(ebs: EbsBackend, cloud: FakeEc2) -> None:
    made = sorted(ebs.create_volume(volume_request(f"pvc-{number}")).handle for number in range(7))
    for handle in made:
        cloud.health.impair(handle)
    cloud.health.page_size = 3
    cloud.calls.clear()

    assert [one.handle for one in listed(ebs)] == made
    assert dict(cloud.calls) == {"DescribeVolumeStatus": 3, "DescribeInstanceStatus": 1, "DescribeVolumes": 2}
    cloud.calls.clear()
    assert [one.handle for one in listed(ebs, 2)] == made
    assert sum(cloud.calls.values()) == 6
    with pytest.raises(InvalidToken):
        ebs.list_volume_health(PageRequest(cursor="? ☃", limit=1), {})


def test_questions_of_one_moment_share_their_calls(ebs: EbsBackend, cloud: FakeEc2) -> None:
    (node,) = nodes(cloud)
    made = [ebs.create_volume(volume_request(f"pvc-{number}")) for number in range(10)]
    for one in made:
        ebs.attach(attach_request(node, one))
    cloud.calls.clear()

    found = run_together(*[partial(ebs.volume_health, one.handle, {}) for one in made])
    assert found == [()] * 10
    assert max(cloud.calls[call] for call in ("DescribeVolumeStatus", "DescribeInstanceStatus")) <= 5


def test_a_volume_that_is_gone_is_not_found(ebs: EbsBackend) -> None:
    with pytest.raises(NotFound):
        ebs.volume_health(GONE, {})
