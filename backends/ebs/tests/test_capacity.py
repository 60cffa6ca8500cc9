"""Capacity by the account's quotas: its value, its calls, and no limit where quotas cannot be read."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_ebs import capacity
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Parameters, Type
from csi_multi_ebs.volume_types import TYPE_LIMITS

from csi_multi.contract import (
    UNLIMITED,
    CapacityReport,
    CapacityRequest,
    ResourceExhausted,
    Segments,
    SizeRange,
    Unavailable,
)

from . import fake_aws_services
from .backend_requests import A, B, Connect, volume_request
from .fake_ec2 import FakeEc2
from .fake_ec2_calls import Answer
from .thread_helpers import run_together

GIB = 2**30
TIB = 2**40
GP3 = capacity.QUOTAS["gp3"]


def of(ebs: EbsBackend, kind: Type = "gp3", segments: Segments | None = None) -> CapacityReport:
    return ebs.capacity(CapacityRequest(parameters=Parameters(type=kind), segments=segments))


def volume(cloud: FakeEc2, kind: str, size: int, zone: str = A) -> None:
    """Make a volume that is not the driver's."""
    more = {"Iops": 100} if kind in ("io1", "io2") else {}
    cloud.client().create_volume(AvailabilityZone=zone, Size=size, VolumeType=kind, **more)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_it_is_what_the_quota_of_the_type_leaves_of_everybodys_volumes_in_all_zones(
    ebs: EbsBackend, cloud: FakeEc2
) -> None:
    cloud.quotas[GP3] = 3.0
    volume(cloud, "gp3", 1000)
    volume(cloud, "gp3", 24, B)
    volume(cloud, "gp2", 500)
    ebs.create_volume(volume_request())

    assert of(ebs) == CapacityReport(available=2 * TIB - GIB, maximum=2 * TIB - GIB, minimum=GIB)
    assert of(ebs, "gp2").available == 300 * TIB - 500 * GIB


def test_all_that_is_told_can_be_made_and_no_more(ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.quotas[GP3] = 1.0
    volume(cloud, "gp3", 24)
    left = of(ebs).available

    with pytest.raises(ResourceExhausted, match="VolumeLimitExceeded"):
        ebs.create_volume(volume_request(size=SizeRange(required=left + GIB)))
    assert ebs.create_volume(volume_request(size=SizeRange(required=left))).size == left == 1000 * GIB


def test_without_a_class_it_is_that_of_the_usual_type(ebs: EbsBackend) -> None:
    assert ebs.capacity(CapacityRequest()) == of(ebs, "gp3")


@pytest.mark.parametrize("kind", TYPE_LIMITS)
def test_each_type_has_its_quota_and_sizes(kind: Type, ebs: EbsBackend, cloud: FakeEc2) -> None:
    cloud.quotas = {code: 100.0 + number for number, code in enumerate(capacity.QUOTAS.values())}
    quota = 100 + list(capacity.QUOTAS).index(kind)
    smallest, largest = TYPE_LIMITS[kind].size

    assert of(ebs, kind) == CapacityReport(available=quota * TIB, maximum=largest * GIB, minimum=smallest * GIB)


@pytest.mark.parametrize(("used", "left"), [(1024 - 125, 125 * GIB), (1024 - 124, 0), (1024, 0), (2000, 0)])
def test_what_is_left_and_too_little_for_a_volume_is_nothing(
    used: int, left: int, ebs: EbsBackend, cloud: FakeEc2
) -> None:
    volume(cloud, "st1", used)
    cloud.quotas[capacity.QUOTAS["st1"]] = 1.0

    assert of(ebs, "st1") == CapacityReport(available=left, maximum=left, minimum=125 * GIB)


@pytest.mark.parametrize(
    ("segments", "there"),
    [
        (None, True),
        ({}, True),
        ({"zone": A}, True),
        ({"zone": A, "node": "node-1", "rack": "7"}, True),
        ({"zone": B}, False),
        ({"zone": "us-east-1a"}, False),
        ({"node": "node-1"}, False),
    ],
)
@pytest.mark.parametrize("told", ["quotas", "unlimited"])
def test_only_the_zone_of_a_place_counts(segments: Segments | None, there: bool, told: str, connect: Connect) -> None:
    found = of(connect(zones=(A,), capacity=told), segments=segments)

    assert (found.available > 0, (found.maximum or 0) > 0) == (there, there)


def test_pages_of_volumes_and_quotas_are_read_to_their_end(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "MAX_PAGE", 5)
    cloud.quotas_per_page = 2
    for _ in range(12):
        volume(cloud, "gp3", 2)
    cloud.describes.empty_pages = 1

    assert of(ebs).available == 300 * TIB - 24 * GIB
    assert (cloud.calls["ListServiceQuotas"], cloud.calls["DescribeVolumes"]) == (5, 4)


def test_both_answers_are_believed_for_a_while(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        of(ebs, segments={"zone": A})
        of(ebs, "gp2")
    assert cloud.calls["ListServiceQuotas"] == 1
    assert cloud.calls["DescribeVolumes"] == 2

    volume(cloud, "gp3", 24)
    assert of(ebs).available == 300 * TIB
    later(monkeypatch, capacity.USAGE_TTL)
    assert of(ebs).available == 300 * TIB - 24 * GIB
    assert cloud.calls["ListServiceQuotas"] == 1

    cloud.quotas[GP3] = 60.0
    later(monkeypatch, capacity.QUOTAS_TTL)
    assert of(ebs).available == 60 * TIB - 24 * GIB


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the time for which an answer is believed be over, and no more."""
    now = capacity.time.monotonic
    monkeypatch.setattr("csi_multi_ebs.ec2_cache.time.monotonic", lambda: now() + seconds)


def test_classes_that_are_asked_for_at_once_are_one_question(ebs: EbsBackend, cloud: FakeEc2) -> None:
    of(ebs, "standard")  # the client is there, and the quotas
    cloud.calls.clear()

    run_together(*[lambda kind=kind: of(ebs, kind) for kind in TYPE_LIMITS for _ in range(4) if kind != "standard"])

    assert cloud.calls["DescribeVolumes"] <= 2
    assert cloud.calls["ListServiceQuotas"] == 0


TROUBLE: dict[str, Callable[[FakeEc2], Any]] = {
    "forbidden": lambda cloud: cloud.fail("ListServiceQuotas", "AccessDeniedException", times=math.inf),
    "not there": lambda cloud: cloud.fail("ListServiceQuotas", "UnknownOperationException", status=404, times=math.inf),
    "throttled": lambda cloud: cloud.fail("ListServiceQuotas", "TooManyRequestsException", times=math.inf),
    "broken": lambda cloud: cloud.drop("ListServiceQuotas", times=math.inf),
}


def test_a_question_that_failed_is_repeated_once_and_no_more(connect: Connect, cloud: FakeEc2) -> None:
    for times, available in ((1, 300 * TIB), (2, UNLIMITED)):
        cloud.calls.clear()
        cloud.fail("ListServiceQuotas", "ServiceException", status=500, times=times)
        assert of(connect(max_attempts=8)).available == available
        assert cloud.calls["ListServiceQuotas"] == 2


@pytest.mark.parametrize("trouble", TROUBLE)
def test_where_quotas_cannot_be_asked_for_no_limit_is_known_and_the_log_says_so_once(
    trouble: str, ebs: EbsBackend, cloud: FakeEc2, caplog: pytest.LogCaptureFixture
) -> None:
    TROUBLE[trouble](cloud)

    for _ in range(3):
        assert of(ebs) == CapacityReport(available=UNLIMITED, maximum=65536 * GIB, minimum=GIB)
    (warning,) = warnings(caplog)
    assert "cloud" in warning
    assert "servicequotas:ListServiceQuotas" in warning
    assert (cloud.calls["ListServiceQuotas"], cloud.calls["DescribeVolumes"]) == (1, 0)


@pytest.mark.parametrize("body", [b"<html>nobody is here</html>", b"{}", b""])
def test_an_endpoint_that_speaks_another_language_has_no_quotas(
    body: bytes, ebs: EbsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_aws_services, "answer_quotas", lambda *_: Answer(body))

    assert of(ebs).available == UNLIMITED


def test_a_warning_comes_again_after_an_hour_and_quotas_do_too(
    ebs: EbsBackend, cloud: FakeEc2, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = TROUBLE["forbidden"](cloud)
    real = capacity.time.monotonic
    past = 0.0
    monkeypatch.setattr(capacity.time, "monotonic", lambda: real() + past)
    of(ebs)
    past = capacity.QUOTAS_TTL
    of(ebs)
    assert len(warnings(caplog)) == 2

    fault.times = 0
    past *= 2
    assert of(ebs).available == 300 * TIB


def test_quotas_that_cannot_be_asked_for_any_more_count_on(
    ebs: EbsBackend, cloud: FakeEc2, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    of(ebs)
    TROUBLE["throttled"](cloud)
    later(monkeypatch, capacity.QUOTAS_TTL)

    assert of(ebs).available == 300 * TIB
    assert "the last known quotas count" in warnings(caplog)[0]


def test_a_type_without_a_quota_has_no_known_limit(ebs: EbsBackend, cloud: FakeEc2) -> None:
    del cloud.quotas[GP3]

    assert (of(ebs).available, of(ebs, "gp2").available) == (UNLIMITED, 300 * TIB)


def test_unlimited_asks_nobody(connect: Connect, cloud: FakeEc2) -> None:
    found = of(connect(capacity="unlimited"))

    assert found == CapacityReport(available=UNLIMITED, maximum=65536 * GIB, minimum=GIB)
    assert not cloud.calls


def test_use_that_cannot_be_counted_is_no_figure_until_it_was_once(
    ebs: EbsBackend, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.fail("DescribeVolumes", "ServiceUnavailable")
    with pytest.raises(Unavailable, match="DescribeVolumes"):
        of(ebs)

    before = of(ebs)
    cloud.fail("DescribeVolumes", "ServiceUnavailable")
    later(monkeypatch, capacity.USAGE_TTL)
    assert of(ebs) == before


def test_quotas_are_those_of_the_account_that_a_role_leads_to(
    connect: Connect, cloud: FakeEc2, other_role: str
) -> None:
    volume(cloud, "gp3", 1024)

    assert of(connect(role_arn=other_role)).available == 300 * TIB
    assert [call.account for call in cloud.seen if call.service == "servicequotas"] == ["210987654321"]
