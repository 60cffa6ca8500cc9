"""A node is drained: its volumes are unmounted while its driver is there; its pods come back to their bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import volumes_of
from .driver_pods import driver_pods, pod_on
from .kubectl import Kubectl
from .objects import claim, pod
from .on_node import OnNode

SLOW = "trap 'sleep 8; exit 0' TERM; sleep 1000000000 & wait"  # an application that takes its time to stop


@pytest.fixture
def drained(two_nodes: tuple[OnNode, OnNode], kubectl: Kubectl) -> Iterator[OnNode]:
    """The second node, which takes pods again after the test."""
    _, node = two_nodes
    yield node
    kubectl("uncordon", node.name)


def test_the_driver_of_a_drained_node_stays_until_the_last_volume_is_unmounted(
    kubectl: Kubectl, drained: OnNode
) -> None:
    driver = driver_pods(kubectl)
    kubectl.create(claim("data"), pod("user", "data", host=drained.name, script=SLOW, terminationGracePeriodSeconds=20))
    kubectl.wait_running("user")
    name = pod_on(kubectl, drained.name)

    kubectl("cordon", drained.name)
    kubectl("delete", "pod", "user", "--wait=false")
    driver("delete", "pod", name, "--wait=false")
    driver.until("the driver's pod gone", lambda: not driver.exists("pod", name))

    assert drained.mounts() == []


def test_pods_of_a_drained_node_wait_for_it_and_find_their_bytes(kubectl: Kubectl, drained: OnNode) -> None:
    kubectl.create(claim("data"), pod("user", "data", host=drained.name))
    kubectl.wait_running("user")
    kubectl.run("user", "echo kept > /data/file; sync")

    kubectl("drain", drained.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=170s")
    kubectl.until("nothing is mounted", lambda: not drained.mounts())
    kubectl.create(pod("next", "data"))
    (text,) = kubectl.until("it waits", lambda: kubectl.events("next", "FailedScheduling"))
    assert "unschedulable" in text
    kubectl("uncordon", drained.name)
    kubectl.wait_running("next")

    assert kubectl.run("next", "cat /data/file") == "kept"
    assert len(volumes_of(kubectl)) == 1
