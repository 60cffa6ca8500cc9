"""What Kubernetes has on record of the driver's own node."""

from __future__ import annotations

from pathlib import Path

import pytest

from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.contract import FailedPrecondition, NodeRecord, Unavailable
from csi_multi.host.command import LocalHost
from csi_multi.kubernetes.api import KubernetesApi
from csi_multi.kubernetes.node_state import node_record

from .conftest import Cluster

LABELS = {"topology.kubernetes.io/zone": "eu-west-1b", "node.kubernetes.io/instance-type": "m5.large"}
RECORD = NodeRecord(provider_id="aws:///eu-west-1b/i-0123456789abcdef0", labels=LABELS)


def put(cluster: Cluster, name: str = "node-1") -> None:
    node = cluster.put(f"/api/v1/nodes/{name}", spec={"providerID": RECORD.provider_id})
    node["metadata"]["labels"] = dict(LABELS)


@pytest.fixture
def token(credentials: Path, cluster: Cluster) -> Path:
    """The token that the API takes at first."""
    cluster.token = "token"
    return credentials / "token"


def test_a_node_has_an_id_at_its_provider_and_labels(cluster: Cluster) -> None:
    put(cluster)

    assert node_record("node-1", cluster.api) == RECORD


def test_a_node_that_has_no_provider_has_no_id_there(cluster: Cluster) -> None:
    cluster.node("node-1")

    assert node_record("node-1", cluster.api) == NodeRecord(provider_id="", labels={})


def test_a_token_that_the_kubelet_has_replaced_is_read_again(cluster: Cluster, token: Path) -> None:
    put(cluster)
    assert node_record("node-1", cluster.api) == RECORD
    cluster.token = "rotated"
    with pytest.raises(Unavailable, match=r"node 'node-1': .* 401"):
        node_record("node-1", cluster.api)
    try:
        token.write_text("rotated\n")
        assert node_record("node-1", cluster.api) == RECORD
    finally:
        token.write_text("token\n")


def test_without_the_right_to_read_it_the_error_names_the_right(cluster: Cluster) -> None:
    put(cluster)
    cluster.refused = 403

    with pytest.raises(Unavailable, match=r"403 .*needs the right to get nodes"):
        node_record("node-1", cluster.api)


def test_a_pod_without_a_token_is_told_that_it_needs_one(cluster: Cluster, tmp_path: Path) -> None:
    api = KubernetesApi("https://localhost:1", str(tmp_path))

    with pytest.raises(Unavailable, match="automountServiceAccountToken"):
        node_record("node-1", api)


def test_a_server_of_another_ca_is_not_trusted(cluster: Cluster, tmp_path: Path) -> None:
    put(cluster)
    other = CertificateAuthority(tmp_path / "made", LocalHost(), 1).sign("api", "localhost")
    (tmp_path / "token").write_text("token")
    (tmp_path / "ca.crt").write_bytes((other / "ca.pem").read_bytes())

    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        node_record("node-1", KubernetesApi(cluster.url, str(tmp_path)))


def test_outside_of_a_pod_it_never_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(FailedPrecondition, match="KUBERNETES_SERVICE_HOST is not set; run in a pod"):
        node_record("node-1")
