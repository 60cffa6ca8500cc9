"""A node is out of service when an operator has said so, and its kubelet does not report any more."""

from __future__ import annotations

import pytest

from csi_multi.contract import Unavailable
from csi_multi.kubernetes.api import KubernetesApi
from csi_multi.kubernetes.node_state import OUT_OF_SERVICE, is_out_of_service

from .conftest import Cluster


def put(cluster: Cluster, *taints: str, ready: str) -> None:
    conditions = [{"type": "MemoryPressure", "status": "Unknown"}, {"type": "Ready", "status": ready}]
    cluster.node("node-1", *taints)["status"] = {"conditions": conditions if ready else []}


@pytest.mark.parametrize(
    ("taints", "ready", "gone"),
    [
        ((OUT_OF_SERVICE,), "Unknown", True),
        ((OUT_OF_SERVICE,), "False", True),
        (("node.kubernetes.io/unreachable", OUT_OF_SERVICE), "Unknown", True),
        ((OUT_OF_SERVICE,), "", True),
        ((OUT_OF_SERVICE,), "True", False),
        (("node.kubernetes.io/unreachable",), "Unknown", False),
        ((), "True", False),
    ],
)
def test_a_node_is_out_of_service_with_the_taint_and_without_a_kubelet(
    cluster: Cluster, taints: tuple[str, ...], ready: str, gone: bool
) -> None:
    put(cluster, *taints, ready=ready)

    assert is_out_of_service("node-1", cluster.api) is gone


def test_a_node_that_kubernetes_does_not_know_is_not_told_to_be_out_of_service(cluster: Cluster) -> None:
    with pytest.raises(Unavailable, match=r"node 'node-2': the Kubernetes API does not tell .* 404"):
        is_out_of_service("node-2", cluster.api)


def test_without_kubernetes_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(Unavailable, match="does not tell whether it is out of service"):
        is_out_of_service("node-1")
    with pytest.raises(Unavailable, match="the right to get nodes"):
        is_out_of_service("node-1", KubernetesApi("https://localhost:1"))
