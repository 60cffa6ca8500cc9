"""The documented IAM policy allows each call that the driver makes, and nothing on resources of other owners."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from csi_multi_ebs.botocore_model import CALLS, SERVICES

from csi_multi.contract import IMPORTED, FailedPrecondition, PageRequest, SizeRange, Stamp

from .backend_requests import (
    CLUSTER,
    DRIVER,
    GIB,
    A,
    Connect,
    attach_request,
    expand_request,
    group_request,
    modify_request,
    nodes,
    parameters,
    snapshot,
    snapshot_request,
    tags,
    volume,
    volume_request,
)
from .fake_ec2 import REGION, Call, FakeEc2
from .iam import Need, Statement, allowed, needs, several

DOCS = Path(__file__).parents[3] / "docs"


def statements(page: str, number: int = 0) -> list[Statement]:
    blocks = re.findall(r"```json\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    found: list[Statement] = json.loads(blocks[number])["Statement"]
    return found


POLICY = statements("ebs.md")
IMPORT = statements("import.md")


def recorded(cloud: FakeEc2) -> list[Need]:
    """Return what all calls from now on need: judged by the tags of their moment."""
    found: list[Need] = []

    def judge(call: Call) -> bool:
        found.extend(needs(call, lambda id: tags(cloud, id)))
        return False

    cloud.fail("*", "never", times=math.inf, when=judge)
    return found


@pytest.fixture
def everything(connect: Connect, cloud: FakeEc2) -> list[Need]:
    """What a driver needs that does whatever it can, as far as EC2 sees it."""
    ebs = connect(zones=(A,))
    (node,) = nodes(cloud, 1)
    found = recorded(cloud)
    first = ebs.create_volume(volume_request("pvc-1"))
    ebs.clone_volume(volume_request("pvc-2", source=volume(first.handle)))
    options = {"fastSnapshotRestoreAvailabilityZones": A, "lockMode": "governance", "lockDuration": "1"}
    taken = ebs.create_snapshot(snapshot_request("snap-1", first.handle, **options))
    ebs.get_snapshot(taken.handle)
    waiting = parameters(blockAttachUntilInitialized="true")
    size = SizeRange(required=GIB)
    restored = ebs.restore_volume(volume_request("pvc-3", source=snapshot(taken.handle), size=size, parameters=waiting))
    ebs.attach(attach_request(node, first))
    ebs.attach(attach_request(node, restored))
    ebs.expand_volume(expand_request(first, 2))
    ebs.modify_volume(modify_request(first, tagSpecification_1="team=red"))
    ebs.modify_volume(modify_request(first, tagDeletion_1="team"))
    ebs.list_volumes(PageRequest())
    ebs.list_snapshots(PageRequest())
    group = ebs.create_group_snapshot(group_request("group-1", first.handle, restored.handle))
    ebs.get_group_snapshot(group.handle)
    ebs.delete_group_snapshot(group.handle, {})
    later = ebs.create_snapshot(snapshot_request("snap-2", first.handle))
    ebs.get_snapshot(later.handle)
    list(ebs.allocated_blocks(later.handle, 0, {}).extents)
    list(ebs.changed_blocks(taken.handle, later.handle, 0, {}).extents)
    ebs.volume_health(first.handle, {})
    ebs.list_volume_health(PageRequest(), {})
    ebs.detach(first.handle, node, {})
    with pytest.raises(FailedPrecondition, match="is locked"):
        ebs.delete_snapshot(taken.handle, {})
    ebs.delete_volume(first.handle, {})
    return found


@pytest.fixture
def taken_over(connect: Connect, cloud: FakeEc2) -> list[Need]:
    """What `csi-multi import` needs, there and back."""
    ebs = connect(zones=(A,))
    id = cloud.client().create_volume(AvailabilityZone=A, Size=1)["VolumeId"]
    stamp = Stamp(driver=DRIVER, cluster=CLUSTER, name="old", digest=IMPORTED, context={"fsType": "ext4"})
    found = recorded(cloud)
    ebs.import_volume(id, stamp)
    ebs.release_volume(id)
    return found


def less(policy: list[Statement]) -> Iterator[tuple[str, list[Statement]]]:
    """Yield the policy without each single action, resource and value that it lists, and what is left out."""
    for number, statement in enumerate(policy):
        yield statement["Sid"], policy[:number] + policy[number + 1 :]
        lists = [("Action",), ("Resource",), ("Condition", "StringEquals", "ec2:CreateAction")]
        for path in lists:
            for word in _at(statement, path):
                rest = deepcopy(policy)
                inner: Any = rest[number]
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = [one for one in several(inner[path[-1]]) if one != word]
                yield f"{statement['Sid']} {word}", rest


def _at(statement: Statement, path: tuple[str, ...]) -> list[str]:
    inner: Any = statement
    for key in path:
        inner = inner.get(key, {})
    return several(inner) if inner else []


def refused(policy: list[Statement], wanted: list[Need]) -> list[Need]:
    return [one for one in wanted if not allowed(policy, one)]


def test_each_call_that_is_made_is_allowed(everything: list[Need], cloud: FakeEc2) -> None:
    assert refused(POLICY, everything) == []
    assert {one.action.partition(":")[2] for one in everything} == {
        call for call, group in CALLS.items() if SERVICES.get(group) != "service-quotas"
    }


def test_each_action_resource_and_value_of_the_policy_is_needed(everything: list[Need]) -> None:
    without = dict(less(POLICY))

    assert len(without) > 40
    assert [left_out for left_out, policy in without.items() if not refused(policy, everything)] == []


@pytest.mark.parametrize("owner", ["", f"{DRIVER}/test/cloud", f"other.example/{CLUSTER}/cloud"])
def test_what_is_somebody_elses_is_neither_changed_nor_used(everything: list[Need], owner: str) -> None:
    others = [elsewhere(one, "aws:ResourceTag/csi-multi/owner", owner) for one in everything if whose(one, "Resource")]

    assert len({one.action for one in others}) >= 10
    assert refused(POLICY, others) == others


@pytest.mark.parametrize("owner", ["", f"{DRIVER}/test/cloud", f"other.example/{CLUSTER}/cloud"])
def test_what_would_be_somebody_elses_is_not_made(everything: list[Need], owner: str) -> None:
    made = [one for one in everything if one.resource.endswith("/new") and one.action != "ec2:CreateTags"]
    others = [elsewhere(one, "aws:RequestTag/csi-multi/owner", owner) for one in made]

    assert {one.action for one in others} == {
        *("ec2:CreateVolume", "ec2:CopyVolumes", "ec2:CreateSnapshot", "ec2:CreateSnapshots")
    }
    assert refused(POLICY, others) == others


def test_instances_get_no_other_tag_than_their_name() -> None:
    other = {"aws:TagKeys": (f"csi-multi/node/{DRIVER}", "Name")}

    assert not allowed(POLICY, Need("ec2:CreateTags", f"arn:aws:ec2:{REGION}:1:instance/i-1", other))


def test_what_is_there_is_tagged_by_its_owner_only_and_never_as_if_it_were_new() -> None:
    mine = {"aws:RequestTag/csi-multi/owner": (f"{DRIVER}/{CLUSTER}/cloud",), "aws:TagKeys": ("csi-multi/owner",)}

    for kind in ("volume/vol-1", "snapshot/snap-1"):
        assert not allowed(POLICY, Need("ec2:CreateTags", f"arn:aws:ec2:{REGION}:1:{kind}", mine))


# Import.


def test_an_import_needs_the_statement_that_is_documented_for_it(taken_over: list[Need]) -> None:
    assert [one.action for one in refused(POLICY, taken_over)] == ["ec2:CreateTags"]
    assert refused(POLICY + IMPORT, taken_over) == []


def test_an_import_takes_nothing_from_anybody(taken_over: list[Need]) -> None:
    (tagged,) = refused(POLICY, taken_over)
    theirs = elsewhere(tagged, "aws:ResourceTag/csi-multi/owner", f"{DRIVER}/test/cloud")
    not_for_us = elsewhere(tagged, "aws:RequestTag/csi-multi/owner", f"{DRIVER}/test/cloud")

    assert refused(POLICY + IMPORT, [theirs, not_for_us]) == [theirs, not_for_us]


def whose(one: Need, kind: str) -> tuple[str, ...]:
    return one.context.get(f"aws:{kind}Tag/csi-multi/owner", ())


def elsewhere(one: Need, key: str, owner: str) -> Need:
    context = {name: words for name, words in one.context.items() if name != key}
    return Need(one.action, one.resource, context | ({key: (owner,)} if owner else {}))
