"""EC2 may show a new volume late: until then no creation ends with a final error."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_ebs import pending_creates
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import (
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
    StorageError,
    Unauthenticated,
    Unavailable,
    Volume,
    VolumeRequest,
)
from csi_multi.core import idempotent

from . import fake_ec2_describes
from .backend_requests import A, B, C, Connect, topology, volume, volume_request
from .fake_ec2 import Call, FakeEc2, looks, seconds


def made(ebs: EbsBackend, request: VolumeRequest) -> Volume:
    return idempotent.create_volume(ebs, request, "node-1")


def lost(ebs: EbsBackend, cloud: FakeEc2, request: VolumeRequest) -> None:
    """Let a volume be made whose answer is lost."""
    call = "CopyVolumes" if request.source else "CreateVolume"
    cloud.drop(call, after_effect=True)
    with pytest.raises(Unavailable):
        made(ebs, request)


def test_a_pending_creation_expires_and_is_remembered_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pending = pending_creates.PendingCreates(seconds=15)
    pending.add("a", "eu-west-1a")

    assert "a" in pending
    assert (pending.is_pending("a"), pending.zone("a"), pending.zone("b")) == (True, "eu-west-1a", "")
    now = 115.0
    assert "a" in pending
    assert pending.zone("a") == ""
    assert not pending.is_pending("a")
    pending.add("a")
    assert pending.is_pending("a")
    for number in range(pending_creates.MAX_NAMES):
        pending.add(str(number))
    assert "a" not in pending
    pending.remove("1")
    assert "1" not in pending


# Credentials that are over.


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "AuthFailure", "UnauthorizedOperation"])
def test_credentials_that_end_after_an_answer_was_lost_say_nothing_final(
    connect: Connect, cloud: FakeEc2, code: str
) -> None:
    ebs = connect()
    lost(ebs, cloud, volume_request())
    fault = cloud.fail("*", code, times=math.inf)

    for process in (ebs, connect()):
        with pytest.raises(Unavailable, match=code):
            made(process, volume_request())
    fault.times = 0
    assert cloud.everything() == (made(connect(), volume_request()).handle,)


@pytest.mark.parametrize(
    ("code", "error"), [("UnauthorizedOperation", PermissionDenied), ("InvalidParameterValue", InvalidArgument)]
)
def test_a_refusal_after_an_answer_was_lost_is_final_only_when_ec2_would_show_the_volume(
    connect: Connect, cloud: FakeEc2, code: str, error: type[StorageError]
) -> None:
    ebs = connect(consistency_seconds=1)
    cloud.drop("CreateVolume")
    with pytest.raises(Unavailable):
        made(ebs, volume_request())
    cloud.fail("CreateVolume", code, times=math.inf)

    with pytest.raises(Unavailable, match="does not show it yet"):
        made(ebs, volume_request())
    time.sleep(1)
    with pytest.raises(error):
        made(ebs, volume_request())


def test_a_refusal_while_the_volume_is_in_the_making_is_not_final(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(wait_seconds=2, consistency_seconds=60)
    cloud.takes.creating = seconds(3600)
    cloud.takes.appearing = seconds(3600)
    with pytest.raises(Unavailable, match="being created"):
        made(ebs, volume_request())
    cloud.fail("CreateVolume", "UnauthorizedOperation")

    with pytest.raises(Unavailable, match="does not show it yet"):
        made(ebs, volume_request())


@pytest.mark.parametrize("code", ["ExpiredToken", "UnauthorizedOperation", "InvalidParameterValue", "VolumeInUse"])
def test_whatever_goes_wrong_after_the_volume_was_made_is_not_final(
    connect: Connect, cloud: FakeEc2, code: str
) -> None:
    ebs = connect()
    cloud.fail("DescribeVolumes", code)

    with pytest.raises(Unavailable, match=rf"'vol-\w+' was created, but.*{code}"):
        ebs.create_volume(volume_request())
    assert cloud.everything() == (made(ebs, volume_request()).handle,)


def test_a_copy_whose_answer_was_lost_is_not_given_up_when_its_source_goes(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,), consistency_seconds=60)
    origin = ebs.create_volume(volume_request("pvc-0"))
    wish = volume_request(source=volume(origin.handle))
    cloud.takes.appearing = seconds(3600)
    lost(ebs, cloud, wish)
    ebs.delete_volume(origin.handle, {})

    with pytest.raises(Unavailable, match="does not show it yet"):
        made(ebs, wish)
    cloud.advance(3601)
    assert cloud.everything() == (made(ebs, wish).handle,)


def test_without_any_credentials_a_first_creation_says_so(connect: Connect, cloud: FakeEc2) -> None:
    cloud.fail("*", "ExpiredToken", times=math.inf)

    with pytest.raises(Unavailable, match=r"not known whether .*ExpiredToken"):
        made(connect(), volume_request())
    with pytest.raises(Unauthenticated):
        connect().create_volume(volume_request())


# Tags that show later than the volume.


def untagged(cloud: FakeEc2, volumes: int, *, without: str = "") -> list[str]:
    """Let so many looks show volumes without tags, or without those with a prefix; return what looked."""
    seen: list[str] = []
    real = cloud.describes.describe

    def describe(call: Call, kind: Any) -> Any:
        if len(seen) >= volumes or kind.noun != "volume":
            return real(call, kind)
        seen.append(call.action)
        if call.filters() and not without:
            call = call.but({"Filter.1.Value.1": "nobody's"})

        def bare(each: Any) -> dict[str, object]:
            shown = fake_ec2_describes.volume_fields(each)
            tags: Any = shown.get("tagSet", [])
            return {**shown, "tagSet": [tag for tag in tags if without and not tag["key"].startswith(without)]}

        return real(call, replace(kind, shown=bare))

    cloud.describes.describe = describe  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("without", ["", "csi-multi/stamp."])
def test_a_volume_whose_tags_show_late_is_waited_for(connect: Connect, cloud: FakeEc2, without: str) -> None:
    ebs = connect(consistency_seconds=5)
    seen = untagged(cloud, 4, without=without)

    found = made(ebs, volume_request())

    assert (found.stamp.name, len(seen)) == ("pvc-1", 4)
    assert cloud.everything() == (found.handle,)


def test_a_volume_whose_tags_do_not_show_in_time_is_asked_for_again(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(consistency_seconds=60, wait_seconds=2)
    seen = untagged(cloud, 10**6)

    with pytest.raises(Unavailable, match="being created"):
        made(ebs, volume_request())
    seen += [""] * 10**6
    assert cloud.everything() == (made(ebs, volume_request()).handle,)


def test_a_volume_whose_tags_were_taken_off_long_ago_is_not_ours(connect: Connect, cloud: FakeEc2) -> None:
    first = made(connect(), volume_request())
    cloud.client().delete_tags(Resources=[first.handle], Tags=[{"Key": "csi-multi/owner"}])

    with pytest.raises(FailedPrecondition, match="does not belong to this driver"):
        made(connect(), volume_request())


# Volumes that failed.


def test_a_failed_volume_that_is_gone_already_is_no_reason_to_give_up(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect()
    cloud.fail_next_volume("error")
    cloud.fail("DeleteVolume", "InvalidVolume.NotFound", after_effect=True)

    with pytest.raises(Unavailable, match="KMS key"):
        made(ebs, volume_request())
    assert cloud.everything() == ()
    found = made(ebs, volume_request())
    assert cloud.everything() == (found.handle,)


def test_a_failed_volume_that_may_not_be_deleted_is_no_final_answer(connect: Connect, cloud: FakeEc2) -> None:
    cloud.fail_next_volume("error")
    cloud.fail("DeleteVolume", "UnauthorizedOperation")

    with pytest.raises(Unavailable, match="was created, but"):
        made(connect(), volume_request())


# Zones without room, and the tokens they keep.


def keeping_tokens(cloud: FakeEc2) -> None:
    """Let a creation that is refused for want of room keep its token, as EC2 may."""
    kept: dict[str, str] = {}

    def mismatch(call: Call) -> bool:
        zone = call.get("AvailabilityZone")
        return kept.setdefault(call.get("ClientToken"), zone) != zone

    cloud.fail("CreateVolume", "IdempotentParameterMismatch", times=math.inf, when=mismatch)


def test_a_token_that_a_full_zone_keeps_costs_no_time(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(consistency_seconds=60)
    keeping_tokens(cloud)
    cloud.limits.full_zones = {A, B}

    found = made(ebs, volume_request(topology=topology(A, B, C)))

    assert found.topology == ({"zone": C},)
    assert cloud.calls["CreateVolume"] == 6  # A 0, B 0, B 1, C 0, C 1, C 2
    assert made(connect(consistency_seconds=60), volume_request(topology=topology(A, B, C))) == found
    assert len(cloud.everything()) == 1


def test_a_full_zone_is_not_left_while_an_earlier_call_may_have_made_the_volume_there(
    connect: Connect, cloud: FakeEc2
) -> None:
    ebs = connect(consistency_seconds=60)
    wish = volume_request(topology=topology(A, B))
    cloud.takes.appearing = looks(2)
    lost(ebs, cloud, wish)
    cloud.fail("CreateVolume", "InsufficientVolumeCapacity", times=1)

    with pytest.raises(Unavailable, match="does not show it yet"):
        made(ebs, wish)
    found = made(ebs, wish)
    assert found.topology == ({"zone": A},)
    assert cloud.everything() == (found.handle,)


def test_a_zone_that_has_room_again_is_not_tried_while_another_may_have_the_volume(
    connect: Connect, cloud: FakeEc2
) -> None:
    ebs = connect(consistency_seconds=60)
    keeping_tokens(cloud)
    cloud.limits.full_zones = {A}
    cloud.takes.appearing = seconds(3600)
    wish = volume_request(topology=topology(A, B))
    cloud.drop("CreateVolume", skip=1, after_effect=True)  # passes: A 0; refused: B 0; lost: B 1
    with pytest.raises(Unavailable):
        made(ebs, wish)
    cloud.limits.full_zones = set()

    with pytest.raises(Unavailable, match="does not show it yet"):
        made(ebs, wish)
    cloud.advance(3601)
    found = made(ebs, wish)
    assert found.topology == ({"zone": B},)
    assert cloud.everything() == (found.handle,)


def test_a_volume_that_was_made_with_the_token_of_a_full_zone_is_found(connect: Connect, cloud: FakeEc2) -> None:
    first = made(connect(), volume_request(topology=topology(B)))
    cloud.limits.full_zones = {A}

    again = made(connect(extra_tags={"team": "red"}, consistency_seconds=60), volume_request(topology=topology(A, B)))

    assert again == first
    assert len(cloud.everything()) == 1
