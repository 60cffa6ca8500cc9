"""A node dies: claims of its volumes wait for it, all others go on; when it is back, so are the bytes."""

from __future__ import annotations

from .conftest import taints, volumes_of
from .driver_pods import kill_containers, pod_on
from .faults import cut_off, without
from .kubectl import Kubectl
from .objects import GONE, claim, pod
from .on_node import OnNode


def test_volumes_of_a_dead_node_wait_for_it_and_those_of_others_do_not(
    kubectl: Kubectl, two_nodes: tuple[OnNode, OnNode]
) -> None:
    first, node = two_nodes
    everywhere = Kubectl(kubectl.words, "default")  # has the events of PVs
    kubectl.create(claim("data"), pod("user", "data", host=node.name, tolerations=GONE))
    kubectl.create(claim("unwanted"), pod("unwanted", host=node.name))
    kubectl.wait_running("user", "unwanted")
    kubectl.run("user", "echo kept > /data/file; sync")
    kubectl.delete("pod", "unwanted")
    unwanted = kubectl.volume("unwanted")["metadata"]["name"]
    with without(node, "kubelet"):
        assert kill_containers(kubectl, [node], "driver", "livenessprobe", pod=pod_on(kubectl, node.name)) == 2
        with cut_off(node, first):
            kubectl.until("the node is unreachable", lambda: "unreachable" in taints(kubectl, node))
            kubectl.until("its pod is told to go", lambda: deleted(kubectl, "user"))
            kubectl("delete", "pvc", "unwanted", "--wait=false")
            kubectl.create(pod("next", "data"), claim("other"), pod("other"))
            kubectl.wait_running("other")
            assert kubectl.get("pod", "other")["spec"]["nodeName"] == first.name
            kubectl.until("it waits", lambda: kubectl.events("next", "FailedScheduling"))
            texts = kubectl.until("the deletion waits", lambda: everywhere.events(unwanted, "VolumeFailedDelete"))
            assert any(node.name in text for text in texts), texts
            assert kubectl.exists("pv", unwanted)

    kubectl.wait_running("next", "other")
    kubectl.until("the deleted volume is gone", lambda: not kubectl.exists("pv", unwanted))

    assert kubectl.run("next", "cat /data/file") == "kept"
    assert kubectl.get("pod", "next")["spec"]["nodeName"] == node.name
    assert len(volumes_of(kubectl)) == 2


def deleted(kubectl: Kubectl, name: str) -> bool:
    return "deletionTimestamp" in kubectl.get("pod", name)["metadata"]
