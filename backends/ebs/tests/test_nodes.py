"""Instances have node ids: written once on the instance, read by every later process."""

from __future__ import annotations

from dataclasses import replace

from csi_multi_ebs.backend import EbsBackend

from csi_multi.ids import split_node

from .accounts import A, Connect, asked, nodes, on, tags
from .rig import Cloud
from .threads import together

KEY = "csi-multi/node/multi.csi.example.com"


def test_an_instance_is_tagged_once_however_many_volumes_it_gets(connect: Connect, cloud: Cloud) -> None:
    (node,) = nodes(cloud)
    for number in range(3):
        ebs = connect(zones=(A,))
        for name in ("a", "b"):
            ebs.attach(on(node, ebs.create_volume(asked(f"pvc-{number}-{name}"))))

    assert cloud.calls["CreateTags"] == 1
    assert tags(cloud, node.fact)[KEY] == f"node-1/cloud={node.fact}"


def test_a_node_that_is_called_otherwise_now_is_tagged_anew(ebs: EbsBackend, connect: Connect, cloud: Cloud) -> None:
    (node,) = nodes(cloud)
    renamed = replace(node, name="node-9", id=f"node-9;cloud+other={node.fact}")
    made = ebs.create_volume(asked())
    ebs.attach(on(node, made))
    ebs.detach(made.handle, node, {})

    ebs.attach(on(renamed, made))

    for one in (ebs, connect()):
        (told,) = one.get_volume(made.handle).published_nodes
        assert (told, split_node(told, "cloud").fact) == (renamed.id, node.fact)


def test_an_instance_that_nobody_named_is_told_by_its_own_id(ebs: EbsBackend, cloud: Cloud) -> None:
    (node,) = nodes(cloud)
    made = ebs.create_volume(asked())
    cloud.client().attach_volume(VolumeId=made.handle, InstanceId=node.fact, Device="/dev/xvdba")

    assert ebs.get_volume(made.handle).published_nodes == (node.fact,)


def test_a_tag_that_could_not_be_written_is_written_with_the_next_attachment(ebs: EbsBackend, cloud: Cloud) -> None:
    (node,) = nodes(cloud)
    first, second = (ebs.create_volume(asked(name)) for name in ("pvc-1", "pvc-2"))
    cloud.fail("CreateTags", "RequestLimitExceeded")
    ebs.attach(on(node, first))

    ebs.attach(on(node, second))

    assert tags(cloud, node.fact)[KEY]


def test_drivers_do_not_overwrite_each_others_names(ebs: EbsBackend, cloud: Cloud) -> None:
    (node,) = nodes(cloud)
    cloud.client().create_tags(Resources=[node.fact], Tags=[{"Key": "csi-multi/node/other.example", "Value": "n"}])

    ebs.attach(on(node, ebs.create_volume(asked())))

    assert tags(cloud, node.fact)["csi-multi/node/other.example"] == "n"


def test_the_nodes_of_many_volumes_are_asked_for_together(connect: Connect, cloud: Cloud) -> None:
    both = nodes(cloud, 2)
    ebs = connect(zones=(A,))
    volumes = [ebs.create_volume(asked(f"pvc-{number}")) for number in range(6)]
    for number, made in enumerate(volumes):
        ebs.attach(on(both[number % 2], made))
    later = connect()
    cloud.calls.clear()

    done = together(*[lambda one=one: later.get_volume(one.handle).published_nodes for one in volumes])

    assert done == [(both[number % 2].id,) for number in range(6)]
    assert cloud.calls["DescribeInstances"] <= 2
