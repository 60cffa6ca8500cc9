"""Lookups of an instance: its own account and tags, current values, and no wait beyond the deadline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

import pytest
from csi_multi_ebs import ec2_cache
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.ec2_cache import Ec2Cache

from csi_multi.contract import FailedPrecondition, NotFound, PageRequest, Timeout, Unavailable

from .backend_requests import (
    A,
    Connect,
    attach_request,
    backend_config,
    nodes,
    setting,
    snapshot_request,
    volume_request,
)
from .fake_ec2 import FakeEc2
from .thread_helpers import run_together


@pytest.fixture
def mine(cloud: FakeEc2) -> Iterator[Ec2Cache]:
    cache = Ec2Cache(backend_config(cloud), setting())
    yield cache
    cache.client.close()


def test_instances_of_two_accounts_never_see_each_others_volumes(
    connect: Connect, cloud: FakeEc2, other_role: str
) -> None:
    ours, theirs = connect(zones=(A,)), connect(zones=(A,), role_arn=other_role)
    first, second = ours.create_volume(volume_request()), theirs.create_volume(volume_request())
    theirs.create_snapshot(snapshot_request("snap-1", second.handle))

    assert cloud.account_of(first.handle) != cloud.account_of(second.handle)
    assert ours.find_volume("pvc-1") == first
    assert theirs.find_volume("pvc-1") == second
    assert [one.handle for one in ours.list_volumes(PageRequest()).items] == [first.handle]
    assert ours.list_snapshots(PageRequest()).items == ()
    for look in (ours.get_volume, lambda handle: ours.delete_volume(handle, {})):
        with pytest.raises(NotFound):
            look(second.handle)


def test_a_node_of_another_account_does_not_exist(connect: Connect, cloud: FakeEc2, other_role: str) -> None:
    (node,) = nodes(cloud)
    theirs = connect(zones=(A,), role_arn=other_role)

    with pytest.raises(NotFound, match=node.fact):
        theirs.attach(attach_request(node, theirs.create_volume(volume_request())))


def test_instances_of_one_account_never_see_each_others_volumes(connect: Connect, cloud: FakeEc2) -> None:
    ours, other = connect(zones=(A,)), connect("other", zones=(A,))
    theirs = other.create_volume(volume_request())

    with pytest.raises(NotFound):
        ours.find_volume("pvc-1")
    with pytest.raises(FailedPrecondition, match=r"'multi.csi.example.com/prod/other', not '.*/cloud'"):
        ours.get_volume(theirs.handle)
    assert ours.list_volumes(PageRequest()).items == ()


def test_names_that_a_filter_would_take_for_wildcards_mean_themselves(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect(zones=(A,))
    ebs.create_volume(volume_request("pvc-1"))

    for name in ("pvc-*", "*", "pvc-?"):
        with pytest.raises(NotFound):
            ebs.find_volume(name)


def test_a_handle_of_another_shape_is_not_found_without_a_call(connect: Connect, cloud: FakeEc2) -> None:
    ebs = connect()

    for handle in ("", "x", "vol-", "vol-1", "VOL-0123456789abcdef0", "vol-0123456789abcdef01", "snap-1"):
        with pytest.raises(NotFound):
            ebs.get_volume(handle)
        with pytest.raises(NotFound):
            ebs.get_snapshot(handle)
    assert cloud.calls.total() == 0


def test_an_instance_is_believed_for_a_moment(mine: Ec2Cache, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch) -> None:
    (node,) = nodes(cloud)
    for _ in range(3):
        mine.instance(node.fact, node.id)
    assert cloud.calls["DescribeInstances"] == 1

    cloud.terminate(node.fact)
    assert mine.instance(node.fact, node.id).state == "running"
    monkeypatch.setattr(ec2_cache, "INSTANCE_TTL", 0.0)
    with pytest.raises(NotFound, match=node.id):
        mine.instance(node.fact, node.id)
    monkeypatch.undo()
    with pytest.raises(NotFound, match=node.id):
        mine.instance(node.fact, node.id)


def test_instances_that_were_seen_long_ago_are_forgotten(
    mine: Ec2Cache, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ec2_cache, "INSTANCE_TTL", 0.0)
    for node in nodes(cloud, 3):
        mine.instance(node.fact, node.id)

    assert len(mine._instances) == 1


def test_waiting_ends_a_second_before_the_caller_stops_listening(mine: Ec2Cache) -> None:
    now = time.monotonic()

    assert mine.wait_deadline(None) == pytest.approx(now + 20, abs=2)
    assert mine.wait_deadline(now + 2) == now + 1
    assert mine.wait_deadline(now + 60) == pytest.approx(now + 20, abs=2)


@pytest.mark.parametrize("action", ["DescribeVolumes", "DescribeSnapshots"])
def test_every_lookup_has_a_deadline(connect: Connect, cloud: FakeEc2, action: str) -> None:
    ebs = connect(wait_seconds=2)
    cloud.slow(action, 60, times=9)
    looks: dict[str, list[Callable[[str], object]]] = {
        "DescribeVolumes": [ebs.get_volume, lambda _: ebs.find_volume("pvc-1"), lambda one: ebs.detach(one, None, {})],
        "DescribeSnapshots": [
            lambda _: ebs.get_snapshot("snap-00000000000000000"),
            lambda _: ebs.find_snapshot("snap-1"),
            lambda _: ebs.delete_snapshot("snap-00000000000000000", {}),
        ],
    }
    started = time.monotonic()

    for look in looks[action]:
        with pytest.raises(Timeout):
            look("vol-00000000000000000")
    assert time.monotonic() - started < 40


def test_the_zones_of_an_instance_are_those_of_the_region_that_it_may_use(cloud: FakeEc2) -> None:
    mine = Ec2Cache(backend_config(cloud, zones=(A, "us-east-1a")), setting())

    assert (mine.zones(), len(mine.region_zones())) == ((A,), 3)
    assert cloud.calls["DescribeAvailabilityZones"] == 1
    mine.client.close()


@pytest.mark.parametrize("action", ["DescribeAvailabilityZones", "DescribeInstances"])
def test_callers_that_come_during_the_first_lookup_share_it(cloud: FakeEc2, action: str) -> None:
    mine = Ec2Cache(backend_config(cloud), setting())
    (node,) = nodes(cloud)
    look: Callable[[], object] = (
        mine.zones if action == "DescribeAvailabilityZones" else lambda: mine.instance(node.fact, node.name)
    )
    cloud.slow(action, 1)

    def begin_late() -> object:
        while not cloud.calls[action]:
            time.sleep(0.001)
        time.sleep(0.1)  # the batch of the first caller is closed
        return look()

    assert len(set(map(str, run_together(look, *[begin_late] * 20)))) == 1
    assert cloud.calls[action] == 1
    mine.client.close()


def test_check_says_what_is_wrong_with_ec2(connect: Connect, cloud: FakeEc2) -> None:
    ebs: EbsBackend = connect()
    ebs.check()

    cloud.fail("DescribeAvailabilityZones", "ServiceUnavailable")
    with pytest.raises(Unavailable, match="ServiceUnavailable"):
        ebs.check()


def test_a_node_does_not_ask_ec2_whether_it_answers(cloud: FakeEc2) -> None:
    """It has no credentials."""
    node = EbsBackend(backend_config(cloud), dataclasses.replace(setting(), controller=False))

    node.check()
    assert cloud.calls.total() == 0
