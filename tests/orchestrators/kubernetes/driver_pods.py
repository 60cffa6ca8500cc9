"""The driver's own pods, as the tests look at them and kill what is in them."""

from __future__ import annotations

from .kubectl import DRIVER, Kubectl, Object
from .on_node import OnNode

NAMESPACE = "csi-multi"
NODE_PODS = "app.kubernetes.io/component=node"
LEASE = DRIVER.replace(".", "-")  # of the provisioner


def driver_pods(kubectl: Kubectl) -> Kubectl:
    """Return kubectl in the driver's namespace."""
    return Kubectl(kubectl.words, NAMESPACE)


def pod_on(kubectl: Kubectl, node: str) -> str:
    """Return the name of the driver's pod on a node."""
    found = driver_pods(kubectl)("get", "pod", "-o", "name", "-l", NODE_PODS, f"--field-selector=spec.nodeName={node}")
    return found.removeprefix("pod/")


def leader(kubectl: Kubectl) -> str:
    """Return the controller's pod whose provisioner creates volumes."""
    lease = driver_pods(kubectl).get("lease", LEASE)
    return str(lease["spec"]["holderIdentity"])


def kill_containers(kubectl: Kubectl, nodes: list[OnNode], *names: str, pod: str = "") -> int:
    """kill -9 the containers of these names, of one pod or all of the driver; return how many ran."""
    return sum(node.kill(one) for one in containers(kubectl, *names, pod=pod) for node in nodes)


def containers(kubectl: Kubectl, *names: str, pod: str = "") -> list[str]:
    """Return the ids of the containers of these names, of one pod or all of the driver."""
    pods = driver_pods(kubectl).all("pod")
    return [one for found in pods if pod in ("", found["metadata"]["name"]) for one in _containers(found, names)]


def _containers(pod: Object, names: tuple[str, ...]) -> list[str]:
    return [
        status["containerID"].removeprefix("containerd://")
        for status in pod["status"].get("containerStatuses", [])
        if status["name"] in names and "containerID" in status
    ]
