"""EC2 throttles or does not answer: no thread is held by that, and other groups of calls continue."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_ebs import retries, session
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.client import Client
from csi_multi_ebs.config import Config

from csi_multi.contract import StorageError, Timeout, Unavailable

from .backend_requests import A, Connect, attach_request, nodes, volume_request
from .fake_ec2 import REGION, FakeEc2

GONE = "vol-00000000000000000"
USUAL = Config(region=REGION)


@pytest.fixture
def usual(connect: Connect) -> EbsBackend:
    """A backend with the patience that is the default."""
    return connect(zones=(A,), max_attempts=USUAL.max_attempts)


@pytest.fixture
def stubborn(cloud: FakeEc2) -> Iterator[Client]:
    """EC2 that would be asked fifty times, a quarter of a second each."""
    config = Config(region=cloud.region, endpoint=cloud.endpoint, max_attempts=50, read_seconds=0.25, wait_seconds=1.5)
    ec2 = Client(config)
    ec2.zones()
    yield ec2
    ec2.close()
    session.set_rpc_deadline(0.0)


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are repeated after short pauses; usual ones are random, and seconds after some attempts."""
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.05)


def taken(work: Any) -> tuple[float, StorageError | None]:
    """Return how many seconds it took, and what it raised."""
    began, raised = time.monotonic(), None
    try:
        work()
    except StorageError as error:
        raised = error
    return time.monotonic() - began, raised


def test_creations_that_are_throttled_for_ever_end_and_keep_no_attachment_waiting(
    usual: EbsBackend, cloud: FakeEc2
) -> None:
    (node,) = nodes(cloud)
    made = usual.create_volume(volume_request("before"))
    cloud.fail("CreateVolume", "RequestLimitExceeded", times=math.inf)
    ended: list[tuple[float, StorageError | None]] = []

    def create(number: int) -> None:
        wish = volume_request(f"pvc-{number}", deadline=time.monotonic() + 5)
        ended.append(taken(lambda: usual.create_volume(wish)))

    threads = [threading.Thread(target=create, args=(number,), daemon=True) for number in range(40)]
    for thread in threads:
        thread.start()
    attaching, error = taken(lambda: usual.attach(attach_request(node, made)))
    for thread in threads:
        thread.join(20)

    assert error is None
    assert attaching < 5
    assert len(ended) == 40
    assert all(isinstance(error, Unavailable) for _, error in ended)
    assert max(seconds for seconds, _ in ended) < 15
    assert cloud.calls["CreateVolume"] <= 1 + 40 * USUAL.max_attempts


def test_a_call_that_hangs_is_not_repeated_once_its_caller_stopped_listening(stubborn: Client, cloud: FakeEc2) -> None:
    cloud.slow("DetachVolume", 30, times=math.inf)
    session.set_rpc_deadline(time.monotonic() + 0.1)

    seconds, error = taken(lambda: stubborn.detach(GONE, "i-00000000000000000"))

    assert isinstance(error, Timeout)
    assert seconds < 20
    assert cloud.calls["DetachVolume"] == 1


@pytest.mark.usefixtures("brisk")
def test_a_call_without_a_deadline_is_repeated_for_as_long_as_volumes_are_waited_for(
    stubborn: Client, cloud: FakeEc2
) -> None:
    cloud.slow("DetachVolume", 30, times=math.inf)

    seconds, error = taken(lambda: stubborn.detach(GONE, "i-00000000000000000"))

    assert isinstance(error, Timeout)
    assert 1.5 < seconds < 25
    assert cloud.calls["DetachVolume"] > 2


def test_the_deadline_of_the_rpc_before_ends_no_call(stubborn: Client, cloud: FakeEc2) -> None:
    session.set_rpc_deadline(time.monotonic() - 1)
    cloud.fail("DescribeAvailabilityZones", "RequestLimitExceeded")

    assert stubborn.zones()


def test_an_answer_that_comes_late_is_taken(stubborn: Client, cloud: FakeEc2) -> None:
    cloud.slow("DescribeAvailabilityZones", 0.2)
    session.set_rpc_deadline(time.monotonic() + 0.1)

    assert stubborn.zones()


def test_a_refusal_that_comes_late_is_what_ec2_said(stubborn: Client, cloud: FakeEc2) -> None:
    cloud.slow("DeleteVolume", 0.2)
    cloud.fail("DeleteVolume", "RequestLimitExceeded")
    session.set_rpc_deadline(time.monotonic() + 0.1)

    with pytest.raises(Unavailable, match="RequestLimitExceeded"):
        stubborn.delete_volume(GONE)
    assert cloud.calls["DeleteVolume"] == 1


@pytest.mark.usefixtures("brisk")
def test_the_callers_deadline_reaches_the_calls(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,), max_attempts=50, read_seconds=0.25)
    (node,) = nodes(cloud)
    made = ebs.create_volume(volume_request())
    cloud.slow("AttachVolume", 30, times=math.inf)

    seconds, error = taken(lambda: ebs.attach(replace(attach_request(node, made), deadline=time.monotonic() + 2)))

    assert isinstance(error, Timeout)
    assert seconds < 25
    assert cloud.calls["AttachVolume"] > 2
