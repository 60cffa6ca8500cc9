"""The node's instance by what Kubernetes has on record of the node."""

from __future__ import annotations

import pytest
from csi_multi_ebs.node_identity import Identity, recorded

from csi_multi.contract import FailedPrecondition, NodeRecord, Unavailable

IDENTITY = Identity(instance="i-0123456789abcdef0", zone="eu-west-1b", type="m5.large", zone_id="euw1-az2")
LABELS = {
    "kubernetes.io/hostname": "ip-10-0-0-1",
    "node.kubernetes.io/instance-type": IDENTITY.type,
    "topology.kubernetes.io/region": "eu-west-1",
    "topology.kubernetes.io/zone": IDENTITY.zone,
    "topology.k8s.aws/zone-id": IDENTITY.zone_id,
}
RECORD = NodeRecord(provider_id=f"aws:///{IDENTITY.zone}/{IDENTITY.instance}", labels=LABELS)


def without(*labels: str, provider: str = RECORD.provider_id) -> NodeRecord:
    return NodeRecord(provider_id=provider, labels={key: LABELS[key] for key in LABELS if key not in labels})


def test_the_identity_is_in_the_nodes_provider_id_and_labels() -> None:
    assert recorded(RECORD) == IDENTITY


def test_the_provider_id_knows_the_zone_where_labels_have_other_values() -> None:
    renamed = NodeRecord(provider_id=RECORD.provider_id, labels={**LABELS, "topology.kubernetes.io/zone": "room-1"})

    assert recorded(renamed).zone == IDENTITY.zone


def test_a_provider_id_without_a_zone_leaves_it_to_the_label() -> None:
    assert recorded(without(provider=f"aws:///{IDENTITY.instance}")) == IDENTITY


def test_an_older_label_of_the_zone_id_may_be_missing() -> None:
    assert recorded(without("topology.k8s.aws/zone-id")).zone_id == ""


@pytest.mark.parametrize(
    ("record", "missing"),
    [
        (without(provider=""), "spec.providerID"),
        (without("topology.kubernetes.io/zone", provider=f"aws:///{IDENTITY.instance}"), "topology.kubernetes.io/zone"),
        (without("node.kubernetes.io/instance-type"), "node.kubernetes.io/instance-type"),
    ],
)
def test_what_the_cloud_controller_manager_has_not_written_yet_is_asked_for_again(
    record: NodeRecord, missing: str
) -> None:
    with pytest.raises(Unavailable, match=rf"{missing}.* cloud-controller-manager .*'metadata: static'"):
        recorded(record)


@pytest.mark.parametrize(
    "provider",
    [
        "gce://project/europe-west1-b/node-1",
        "kind://docker/kind/kind-worker",
        "aws:///eu-west-1b/0f1e2d3c4b-fargate-ip-10-0-0-1",
        "aws:///euw1-az2/sagemaker/cluster/hyperpod-abc-i-0123456789abcdef0",
    ],
)
def test_a_node_that_is_no_instance_of_ec2_never_becomes_one(provider: str) -> None:
    with pytest.raises(FailedPrecondition, match="is not an EC2 instance"):
        recorded(without(provider=provider))
