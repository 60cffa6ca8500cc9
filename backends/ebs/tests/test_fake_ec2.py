"""The simulated EC2: faults, hooks, instances and accounts."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from .boto3_calls import ZONE, attach, detach, look, make, refused, state
from .fake_ec2 import REGION, FakeEc2, looks


def test_a_new_cloud_has_nothing(cloud: FakeEc2) -> None:
    assert cloud.everything() == ()
    assert cloud.client().describe_volumes()["Volumes"] == []


def test_everything_names_volumes_snapshots_and_attachments_but_not_what_instances_bring(cloud: FakeEc2) -> None:
    (instance,) = cloud.instances()
    volume = make(cloud)
    attach(cloud, volume, instance)
    snapshot = cloud.client().create_snapshot(VolumeId=volume)["SnapshotId"]
    assert cloud.everything() == tuple(sorted((volume, f"{volume} on {instance}", snapshot)))


def test_calls_are_counted_by_action_and_their_parameters_kept(cloud: FakeEc2) -> None:
    make(cloud, Size=7)
    with refused("InvalidVolume.NotFound"):
        look(cloud, "vol-0")
    assert cloud.calls == {"CreateVolume": 1, "DescribeVolumes": 1}
    assert cloud.seen[0].get("Size") == "7"


def test_a_fault_hits_as_many_calls_as_asked_and_no_others(cloud: FakeEc2) -> None:
    cloud.fail("CreateVolume", "RequestLimitExceeded", times=2)
    volumes = cloud.client().describe_volumes()["Volumes"]
    for _ in range(2):
        with refused("RequestLimitExceeded"):
            make(cloud)
    assert volumes == [] == list(cloud.everything())
    make(cloud)
    assert len(cloud.everything()) == 1


def test_a_fault_after_the_effect_hides_what_was_done(cloud: FakeEc2) -> None:
    cloud.fail("CreateVolume", "InternalError", after_effect=True)
    with refused("InternalError"):
        make(cloud)
    assert len(cloud.everything()) == 1


def test_a_fault_can_wait_for_its_turn_and_for_a_certain_call(cloud: FakeEc2) -> None:
    cloud.fail("*", "Unavailable", skip=1, when=lambda call: call.get("Size") == "2")
    make(cloud, Size=2)
    make(cloud, Size=1)
    with refused("Unavailable"):
        make(cloud, Size=2)


def test_an_endless_fault_can_be_ended(cloud: FakeEc2) -> None:
    fault = cloud.fail("*", "InternalError", times=math.inf)
    for _ in range(3):
        with refused("InternalError"):
            make(cloud)
    fault.times = 0
    make(cloud)


@pytest.mark.parametrize(("code", "status"), [("RequestLimitExceeded", 503), ("InternalError", 500), ("Any", 400)])
def test_errors_have_the_status_that_ec2_gives_them(cloud: FakeEc2, code: str, status: int) -> None:
    cloud.fail("DescribeVolumes", code)
    with pytest.raises(cloud.client().exceptions.ClientError) as caught:
        cloud.client().describe_volumes()
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert caught.value.response["ResponseMetadata"]["RequestId"].startswith("fake-")


@pytest.mark.parametrize(("after_effect", "made"), [(False, 0), (True, 1)])
def test_a_connection_breaks_before_or_after_the_effect(cloud: FakeEc2, after_effect: bool, made: int) -> None:
    cloud.drop("CreateVolume", after_effect=after_effect)
    with pytest.raises(ConnectionClosedError):
        make(cloud)
    assert len(cloud.everything()) == made


@pytest.mark.parametrize(("after_effect", "made"), [(False, 0), (True, 1)])
def test_a_call_can_be_too_slow_for_its_client(cloud: FakeEc2, after_effect: bool, made: int) -> None:
    cloud.slow("CreateVolume", 30.0, after_effect=after_effect)
    impatient = Config(read_timeout=0.2, retries={"total_max_attempts": 1})
    with pytest.raises(ReadTimeoutError):
        _client(cloud, impatient).create_volume(Size=1, AvailabilityZone=ZONE)
    assert len(cloud.everything()) == made


def test_a_slow_call_holds_nobody_up(cloud: FakeEc2) -> None:
    cloud.slow("CreateVolume", 30.0)

    def made_in_vain() -> None:
        with pytest.raises(ConnectionClosedError):
            make(cloud)

    slow = threading.Thread(target=made_in_vain)
    slow.start()
    while not cloud.calls["CreateVolume"]:
        time.sleep(0.01)
    assert cloud.client().describe_volumes()["Volumes"] == []
    cloud.end()  # which breaks it off
    slow.join(2.0)
    assert not slow.is_alive()


def test_nothing_is_done_once_the_test_is_over(cloud: FakeEc2) -> None:
    cloud.end()
    with pytest.raises(ConnectionClosedError):
        make(cloud)
    assert cloud.everything() == ()


def test_hooks_are_told_before_the_answer_and_may_call_ec2_themselves(cloud: FakeEc2) -> None:
    told: list[Any] = []
    (instance,) = cloud.instances()
    cloud.on_created = lambda _volume, source: told.append(("created", source))
    cloud.on_attached = lambda volume, *place: told.append((state(cloud, volume), *place))
    cloud.on_detached = lambda volume, *place: told.append((state(cloud, volume), *place))
    cloud.on_snapshot = lambda _snapshot, volume: told.append(("snapshot", volume))
    cloud.on_modified = lambda _volume, size: told.append(("modified", size))
    cloud.on_deleted = lambda volume: told.append(("deleted", volume))
    volume = make(cloud)
    attach(cloud, volume, instance)
    detach(cloud, volume)
    cloud.client().create_snapshot(VolumeId=volume)
    cloud.client().modify_volume(VolumeId=volume, Size=2)
    cloud.client().delete_volume(VolumeId=volume)
    place = (instance, "/dev/xvdba")
    expected = [("created", ""), ("in-use", *place), ("available", *place), ("snapshot", volume), ("modified", 2)]
    assert told == [*expected, ("deleted", volume)]


def test_trouble_in_a_hook_is_kept_for_the_end_of_the_test(cloud: FakeEc2) -> None:
    def broken(*_words: str) -> None:
        raise RuntimeError("no such disk")

    cloud.on_created = broken
    with refused("InternalError", "no such disk"):
        make(cloud)
    assert [str(each) for each in cloud.internal_errors] == ["no such disk"]
    cloud.internal_errors.clear()


def test_instances_run_where_and_as_asked(cloud: FakeEc2) -> None:
    ids = cloud.instances(3, type="c5.large", zone="eu-west-1b")
    (reservation,) = cloud.client().describe_instances(InstanceIds=ids)["Reservations"]
    places = [(one["InstanceType"], one["Placement"]["AvailabilityZone"]) for one in reservation["Instances"]]
    assert places == [("c5.large", "eu-west-1b")] * 3
    assert {one["State"]["Name"] for one in reservation["Instances"]} == {"running"}


def test_an_instance_that_ends_lets_go_of_its_volumes_and_is_forgotten_later(cloud: FakeEc2) -> None:
    ended, forgotten = cloud.instances(2)
    unplugged: list[str] = []
    cloud.on_detached = lambda volume, *_place: unplugged.append(volume)
    volume = make(cloud)
    attach(cloud, volume, ended)
    cloud.terminate(ended)
    cloud.terminate(forgotten, forget=True)
    assert (state(cloud, volume), unplugged) == ("available", [volume])
    (reservation,) = cloud.client().describe_instances(InstanceIds=[ended])["Reservations"]
    assert reservation["Instances"][0]["State"]["Name"] == "terminated"
    assert reservation["Instances"][0]["BlockDeviceMappings"] == []
    with refused("InvalidInstanceID.NotFound", f"'{forgotten}'"):
        cloud.client().describe_instances(InstanceIds=[ended, forgotten])


def test_whoever_assumes_a_role_is_in_another_account(cloud: FakeEc2, other_role: str) -> None:
    cloud.trust[other_role] = "our-external-id"
    own = make(cloud)
    with refused("AccessDenied"):
        cloud.client("sts").assume_role(RoleArn=other_role, RoleSessionName="test")
    there = _assumed(cloud, other_role)
    assert there.describe_volumes()["Volumes"] == []
    other = there.create_volume(Size=1, AvailabilityZone=ZONE)["VolumeId"]
    assert cloud.account_of(own) != cloud.account_of(other) == other_role.split(":")[4]
    assert cloud.everything() == tuple(sorted((own, other)))


def test_whoever_has_no_credentials_is_turned_away(cloud: FakeEc2) -> None:
    anonymous = _client(cloud, Config(signature_version=UNSIGNED))
    with refused("AuthFailure"):
        anonymous.describe_volumes()


def test_regions_are_apart(cloud: FakeEc2) -> None:
    make(cloud)
    assert cloud.client(region="us-east-2").describe_volumes()["Volumes"] == []


def test_time_passes_when_a_test_says_so(cloud: FakeEc2) -> None:
    cloud.takes.creating = looks(1)
    volume = make(cloud)
    cloud.advance(1e9)
    assert [state(cloud, volume) for _ in range(2)] == ["creating", "available"]


def test_calls_at_the_same_time_are_all_answered(cloud: FakeEc2) -> None:
    threads = [threading.Thread(target=make, args=(cloud,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cloud.everything()) == 20


def _client(cloud: FakeEc2, config: Config, **keys: str) -> Any:
    return boto3.Session(**keys).client("ec2", region_name=REGION, endpoint_url=cloud.endpoint, config=config)


def _assumed(cloud: FakeEc2, role: str) -> Any:
    sts = cloud.client("sts")
    given = sts.assume_role(RoleArn=role, RoleSessionName="test", ExternalId="our-external-id")["Credentials"]
    return _client(
        cloud,
        Config(),
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"],
        aws_session_token=given["SessionToken"],
    )
