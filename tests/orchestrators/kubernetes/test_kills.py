"""The driver is killed while it works; what was asked for happens all the same, once."""

from __future__ import annotations

from .conftest import volumes_of
from .driver_pods import kill_containers
from .kubectl import Kubectl
from .objects import claim, pod
from .on_node import OnNode

CLAIMS = [f"data-{n}" for n in range(12)]


def test_both_drivers_are_killed_again_and_again_during_twelve_creations(kubectl: Kubectl, nodes: list[OnNode]) -> None:
    kubectl.create(*(one for name in CLAIMS for one in (claim(name), pod(name))))
    killed = 0
    for number in (0, 1, 6):
        kubectl.until(f"{number} bound", lambda number=number: len(volumes_of(kubectl)) >= number)
        killed += kill_containers(kubectl, nodes, "driver")
    assert killed >= len(nodes) + 1, "drivers ran and were killed"

    kubectl.wait_running(*CLAIMS)
    for name in CLAIMS:
        kubectl.run(name, f"echo {name} > /data/file; sync")

    assert [kubectl.run(name, "cat /data/file") for name in CLAIMS] == CLAIMS
    assert len(volumes_of(kubectl)) == len(CLAIMS)


def test_both_drivers_are_killed_while_volumes_are_deleted(kubectl: Kubectl, nodes: list[OnNode]) -> None:
    names = CLAIMS[:6]
    kubectl.create(*(one for name in names for one in (claim(name), pod(name))))
    kubectl.wait_running(*names)

    kubectl("delete", "pod", "--all", "--wait=false")
    kill_containers(kubectl, nodes, "driver")
    kubectl("delete", "pvc", "--all", "--wait=false")
    kill_containers(kubectl, nodes, "driver")

    kubectl.until("all PVs gone", lambda: not volumes_of(kubectl))
