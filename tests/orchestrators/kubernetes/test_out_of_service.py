"""A node is declared out of service: volumes that others reach move within a minute, those on it wait for it."""

from __future__ import annotations

import time

from .cluster import Cluster
from .conftest import Figure, NewClass, taints
from .kubectl import Kubectl
from .objects import GONE, claim, pod, stateful
from .on_node import SHARED, OnNode
from .power import switched_off

TAINT = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
MOVED = 60.0  # seconds
PODS = ("network-0", "local-0")


def test_a_volume_of_a_network_moves_and_one_of_the_node_waits(
    kubectl: Kubectl, new_class: NewClass, here: Cluster, two_nodes: tuple[OnNode, OnNode], figure: Figure
) -> None:
    first, node = two_nodes
    kubectl.create(claim("network", storage_class=new_class(backend=SHARED)), claim("local"))
    kubectl("cordon", first.name)
    kubectl.create(*(stateful(name, pod(name, tolerations=GONE)) for name in ("network", "local")))
    kubectl.wait_running(*PODS)
    kubectl("uncordon", first.name)
    for name in PODS:
        kubectl.run(name, "echo kept > /data/file; sync")

    with switched_off(node, here):
        kubectl.until("the node is unreachable", lambda: "unreachable" in taints(kubectl, node))
        kubectl.until("its pods are told to go", lambda: all(deleted(kubectl, name) for name in PODS))
        assert places(kubectl) == [node.name, node.name], "they stay there until the taint"
        kubectl("taint", "node", node.name, TAINT)
        declared = time.monotonic()
        kubectl.until("it has moved", lambda: places(kubectl)[0] == first.name)
        kubectl.wait_running("network-0")
        took = time.monotonic() - declared
        kubectl.until("the other one waits", lambda: kubectl.events("local-0", "FailedScheduling"))
        kubectl("taint", "node", node.name, f"{TAINT}-")
        assert kubectl.run("network-0", "cat /data/file; echo more >> /data/file; sync") == "kept"

    kubectl.wait_running(*PODS)
    figure(f"after the taint out-of-service, the volume was in use on the other node in {took:.0f} s")

    assert places(kubectl) == [first.name, node.name]
    assert kubectl.run("local-0", "cat /data/file") == "kept"
    assert kubectl.run("network-0", "cat /data/file") == "kept\nmore"
    assert took < MOVED


def places(kubectl: Kubectl) -> list[str]:
    """Return the node of each pod; none while there is no pod, or it has none."""
    found = {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in kubectl.all("pod")}
    return [found.get(name, "") for name in PODS]


def deleted(kubectl: Kubectl, name: str) -> bool:
    return "deletionTimestamp" in kubectl.get("pod", name)["metadata"]
