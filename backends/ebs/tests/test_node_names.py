"""Node ids of instances: written once as a tag of the instance, and read by every later process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from csi_multi_ebs.backend import EbsBackend

from csi_multi.contract import FailedPrecondition, Node, NotFound
from csi_multi.contract.ids import split_node

from .backend_requests import A, Connect, attach_request, nodes, row, tags, volume_request
from .fake_ec2 import FakeEc2
from .thread_helpers import run_together

KEY = "csi-multi/node/multi.csi.example.com"


def test_an_instance_is_tagged_once_however_many_volumes_it_gets(connect: Connect, cloud: FakeEc2) -> None:
    (node,) = nodes(cloud)
    for number in range(3):
        ebs = connect(zones=(A,))
        for name in ("a", "b"):
            ebs.attach(attach_request(node, ebs.create_volume(volume_request(f"pvc-{number}-{name}"))))

    of_the_instance = [one for one in cloud.seen if one.action == "CreateTags" and node.fact in one.many("ResourceId")]
    assert len(of_the_instance) == 1
    assert tags(cloud, node.fact)[KEY] == f"node-1/cloud={node.fact}"


def test_a_node_that_is_called_otherwise_now_is_tagged_anew(ebs: EbsBackend, connect: Connect, cloud: FakeEc2) -> None:
    (node,) = nodes(cloud)
    renamed = replace(node, name="node-9", id=f"node-9;cloud+other={node.fact}")
    made = ebs.create_volume(volume_request())
    ebs.attach(attach_request(node, made))
    ebs.detach(made.handle, node, {})

    ebs.attach(attach_request(renamed, made))

    for one in (ebs, connect()):
        (told,) = one.get_volume(made.handle).published_nodes
        assert (told, split_node(told, "cloud").fact) == (renamed.id, node.fact)


def test_an_instance_that_nobody_named_is_told_by_its_own_id(ebs: EbsBackend, cloud: FakeEc2) -> None:
    (node,) = nodes(cloud)
    made = ebs.create_volume(volume_request())
    cloud.client().attach_volume(VolumeId=made.handle, InstanceId=node.fact, Device="/dev/xvdba")

    assert ebs.get_volume(made.handle).published_nodes == (node.fact,)


def test_a_tag_that_could_not_be_written_is_written_with_the_next_attachment(ebs: EbsBackend, cloud: FakeEc2) -> None:
    (node,) = nodes(cloud)
    first, second = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))
    cloud.fail("CreateTags", "RequestLimitExceeded")
    ebs.attach(attach_request(node, first))

    ebs.attach(attach_request(node, second))

    assert tags(cloud, node.fact)[KEY]


def test_drivers_do_not_overwrite_each_others_names(ebs: EbsBackend, cloud: FakeEc2) -> None:
    (node,) = nodes(cloud)
    cloud.client().create_tags(Resources=[node.fact], Tags=[{"Key": "csi-multi/node/other.example", "Value": "n"}])

    ebs.attach(attach_request(node, ebs.create_volume(volume_request())))

    assert tags(cloud, node.fact)["csi-multi/node/other.example"] == "n"


def test_the_nodes_of_many_volumes_are_asked_for_together(connect: Connect, cloud: FakeEc2) -> None:
    both = nodes(cloud, 2)
    ebs = connect(zones=(A,))
    volumes = [ebs.create_volume(volume_request(f"pvc-{number}")) for number in range(6)]
    for number, made in enumerate(volumes):
        ebs.attach(attach_request(both[number % 2], made))
    later = connect()
    cloud.calls.clear()

    done = run_together(*[lambda one=one: later.get_volume(one.handle).published_nodes for one in volumes])

    assert done == [(both[number % 2].id,) for number in range(6)]
    assert cloud.calls["DescribeInstances"] <= 2


# Instances that were replaced under the name of their node.


@pytest.mark.parametrize("fact", ["of the new instance", "none"])
def test_a_volume_is_detached_from_the_instance_that_had_the_nodes_name_before(
    connect: Connect, cloud: FakeEc2, fact: str
) -> None:
    old, new, other = nodes(cloud, 3)
    made = (ebs := connect(zones=(A,))).create_volume(volume_request())
    ebs.attach(attach_request(old, made))
    cloud.stop(old.fact)
    now = new.fact if fact == "of the new instance" else ""
    ended = Node(name=old.name, fact=now, id=f"{old.name};cloud={now}" if now else old.name)

    connect().detach(made.handle, ended, {})

    assert row(cloud, made.handle).held == {}
    ebs.attach(attach_request(other, made))


def test_a_volume_stays_on_an_instance_whose_node_has_another_name(connect: Connect, cloud: FakeEc2) -> None:
    old, new = nodes(cloud, 2)
    made = (ebs := connect(zones=(A,))).create_volume(volume_request())
    ebs.attach(attach_request(old, made))
    cloud.stop(old.fact)

    for other in (new, Node(name="node-2", fact="", id="node-2"), Node(name="node", fact="", id="node")):
        with pytest.raises(NotFound, match="not attached"):
            connect().detach(made.handle, other, {})
    assert list(row(cloud, made.handle).held) == [old.fact]


def test_a_volume_stays_on_the_instance_that_has_the_nodes_name_now(connect: Connect, cloud: FakeEc2) -> None:
    """A detachment from the one before it may come late."""
    old, new = nodes(cloud, 2)
    new = replace(new, name=old.name, id=f"{old.name};cloud={new.fact}")
    made = (ebs := connect(zones=(A,))).create_volume(volume_request())
    ebs.attach(attach_request(new, made))
    cloud.stop(old.fact)

    with pytest.raises(NotFound, match="not attached"):
        connect().detach(made.handle, old, {})
    assert list(row(cloud, made.handle).held) == [new.fact]


def test_two_running_instances_with_the_name_of_one_node_are_told_of(connect: Connect, cloud: FakeEc2) -> None:
    old, new = nodes(cloud, 2)
    new = replace(new, name=old.name, id=f"{old.name};cloud={new.fact}")
    made = (ebs := connect(zones=(A,))).create_volume(volume_request())
    ebs.attach(attach_request(old, made))

    with pytest.raises(FailedPrecondition, match=f"attached to {old.fact}: .* both are running; stop or terminate"):
        connect().detach(made.handle, new, {})
    assert list(row(cloud, made.handle).held) == [old.fact]
    cloud.stop(old.fact)
    connect().detach(made.handle, new, {})
    assert row(cloud, made.handle).held == {}


def test_a_tag_that_was_copied_to_another_instance_makes_it_no_node(ebs: EbsBackend, cloud: FakeEc2) -> None:
    one, clone = nodes(cloud, 2)
    ebs.attach(attach_request(one, ebs.create_volume(volume_request())))
    copied = [{"Key": KEY, "Value": tags(cloud, one.fact)[KEY]}]
    made = ebs.create_volume(volume_request("pvc-2"))
    cloud.client().attach_volume(VolumeId=made.handle, InstanceId=clone.fact, Device="/dev/xvdba")
    cloud.client().create_tags(Resources=[clone.fact], Tags=copied)
    cloud.stop(clone.fact)

    with pytest.raises(NotFound, match="not attached"):
        ebs.detach(made.handle, one, {})
    assert list(row(cloud, made.handle).held) == [clone.fact]


def test_an_instance_that_was_called_so_once_and_otherwise_now_keeps_its_volumes(
    connect: Connect, cloud: FakeEc2
) -> None:
    (one,) = nodes(cloud)
    first, second = connect(zones=(A,)), connect(zones=(A,))
    made = first.create_volume(volume_request())
    first.attach(attach_request(one, made))
    renamed = replace(one, name="node-9", id=f"node-9;cloud={one.fact}")
    second.attach(attach_request(renamed, second.create_volume(volume_request("pvc-2"))))

    with pytest.raises(NotFound, match="not attached"):
        first.detach(made.handle, Node(name=one.name, fact="", id=one.name), {})
    assert list(row(cloud, made.handle).held) == [one.fact]
