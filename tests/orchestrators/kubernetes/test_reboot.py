"""A node is switched off and on: mounts and devices are gone, and what pods wrote is there again for them."""

from __future__ import annotations

from .cluster import Cluster
from .kubectl import Kubectl
from .objects import claim, pod
from .on_node import OnNode
from .power import switched_off

BYTES = "dd if=/dev/data bs=512 skip=7 count=1 2>/dev/null | head -c 9"


def test_pods_of_a_node_that_boots_find_their_files_and_bytes(kubectl: Kubectl, here: Cluster, spare: OnNode) -> None:
    kubectl.create(claim("data"), claim("raw", block=True))
    kubectl.create(pod("user", "data", host=spare.name), pod("block", "raw", block=True, host=spare.name))
    kubectl.wait_running("user", "block")
    kubectl.run("user", "echo kept > /data/file; sync")
    kubectl.run("block", "printf raw-bytes | dd of=/dev/data bs=512 seek=7 conv=notrunc,fsync 2>&1")
    before = spare.traces()

    with switched_off(spare, here):
        pass
    kubectl.until("both run again", lambda: restarts(kubectl) == {"user": 1, "block": 1})

    assert kubectl.run("user", "cat /data/file; echo more >> /data/file") == "kept"
    assert kubectl.run("block", BYTES) == "raw-bytes"
    assert spare.traces() == before


def test_a_pod_that_is_deleted_while_its_node_is_off_leaves_nothing(
    kubectl: Kubectl, here: Cluster, spare: OnNode
) -> None:
    before = spare.traces()
    kubectl.create(claim("data"), claim("raw", block=True))
    kubectl.create(pod("user", "data", host=spare.name), pod("block", "raw", block=True, host=spare.name))
    kubectl.wait_running("user", "block")

    with switched_off(spare, here):
        kubectl("delete", "pod", "user", "block", "--force", "--grace-period=0")
        kubectl("delete", "pvc", "data", "raw", "--wait=false")

    kubectl.until("nothing is left", lambda: spare.traces() == before)


def restarts(kubectl: Kubectl) -> dict[str, int]:
    """Return how often each pod that is ready has been started again."""
    pods = {one["metadata"]["name"]: one["status"]["containerStatuses"][0] for one in kubectl.all("pod")}
    return {name: status["restartCount"] for name, status in pods.items() if status["ready"]}
