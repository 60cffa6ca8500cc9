"""A kubelet is killed while volumes are staged: pods go on, and nothing stays mounted that has no pod any more."""

from __future__ import annotations

from .faults import without
from .kubectl import Kubectl
from .objects import claim, pod
from .on_node import OnNode


def test_a_pod_goes_on_with_its_volume_while_its_kubelet_is_away_and_after(
    kubectl: Kubectl, nodes: list[OnNode]
) -> None:
    node = nodes[-1]
    kubectl.create(claim("data"), pod("user", "data", host=node.name))
    kubectl.wait_running("user")
    kubectl.run("user", "echo early > /data/file; sync")
    mounts = node.mounts()
    (path,) = (place for place in mounts if "kubernetes.io~csi" in place)
    with without(node, "kubelet"):
        assert node.run("cat", f"{path}/file") == "early\n"
        node.run("sh", "-c", 'echo late >> "$1/file"', "sh", path)

    kubectl.create(claim("other"), pod("other", host=node.name))
    kubectl.wait_running("user", "other")

    assert kubectl.run("user", "cat /data/file") == "early\nlate"
    assert kubectl.get("pod", "user")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert set(mounts) < set(node.mounts())


def test_a_pod_that_is_deleted_while_its_kubelet_is_away_leaves_no_mount(kubectl: Kubectl, nodes: list[OnNode]) -> None:
    node = nodes[-1]
    before = node.traces()
    kubectl.create(claim("data"), claim("raw", block=True))
    kubectl.create(pod("user", "data", host=node.name), pod("block", "raw", block=True, host=node.name))
    kubectl.wait_running("user", "block")
    with without(node, "kubelet"):
        kubectl("delete", "pod", "user", "block", "--force", "--grace-period=0")
        assert node.mounts()

    kubectl.delete("pvc", "data", "raw")

    kubectl.until("nothing is left", lambda: node.traces() == before)
