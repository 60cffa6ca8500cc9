"""The controller's leader is killed in the middle of many claims: each has one volume in the end, and none has two."""

from __future__ import annotations

from .conftest import NewClass, volumes_of
from .driver_pods import kill_containers, leader
from .kubectl import Kubectl
from .objects import claim, pod
from .on_node import OnNode

CLAIMS = [f"data-{n}" for n in range(50)]
SIDECARS = ("driver", "provisioner", "resizer", "snapshotter")


def images(nodes: list[OnNode]) -> set[str]:
    return {f"{node.name}: {image}" for node in nodes for image in node.images()}


def test_fifty_claims_have_fifty_volumes_and_no_file_more(
    kubectl: Kubectl, new_class: NewClass, nodes: list[OnNode]
) -> None:
    before = images(nodes)
    name = new_class(binding="Immediate")
    kubectl.create(*(claim(one, "16Mi", storage_class=name) for one in CLAIMS))
    for number in (5, 20):
        kubectl.until(f"{number} volumes", lambda number=number: len(volumes_of(kubectl)) >= number)
        kubectl.until("the leader is killed", lambda: kill_containers(kubectl, nodes, *SIDECARS, pod=leader(kubectl)))

    kubectl.until("all bound", lambda: [one["status"].get("phase") for one in kubectl.all("pvc")] == ["Bound"] * 50)
    assert len(images(nodes) - before) == len(CLAIMS)
    kubectl.create(pod(CLAIMS[0]), pod(CLAIMS[-1]))
    kubectl.wait_running(CLAIMS[0], CLAIMS[-1])

    kubectl("delete", "pod", "--all", "--wait=false")
    kubectl("delete", "pvc", "--all", "--wait=false")
    kubectl.until("half of them gone", lambda: len(volumes_of(kubectl)) < len(CLAIMS) // 2)
    kubectl.until("the leader is killed", lambda: kill_containers(kubectl, nodes, *SIDECARS, pod=leader(kubectl)))

    kubectl.until("all PVs gone", lambda: not volumes_of(kubectl))
    assert images(nodes) == before
