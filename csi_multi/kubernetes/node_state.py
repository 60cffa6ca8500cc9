"""What a Node object says: whether an operator has declared the node out of service, and which machine it is."""

from __future__ import annotations

from ..contract import FailedPrecondition, NodeRecord, Unavailable
from .api import API_ERRORS, KubernetesApi, ServerNotKnown, WatchExpired
from .objects import NodeObject

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"  # the taint after which Kubernetes deletes the node's pods


def is_out_of_service(node: str, api: KubernetesApi | None = None) -> bool:
    """Return whether the node has the taint and its kubelet is not ready, as Kubernetes itself asks for both.

    Raises Unavailable when the API does not answer, or does not know the node.
    """
    try:
        found = _read(node, api)
    except (*API_ERRORS, WatchExpired) as error:
        raise _unavailable(node, "whether it is out of service", error) from None
    ready = any(one.type == "Ready" and one.status == "True" for one in found.status.conditions)
    return not ready and any(taint.key == OUT_OF_SERVICE for taint in found.spec.taints)


def node_record(node: str, api: KubernetesApi | None = None) -> NodeRecord:
    """Return the node's id at its provider and its labels.

    Raises Unavailable as above, and FailedPrecondition outside of a pod.
    """
    try:
        found = _read(node, api)
    except ServerNotKnown as error:
        raise FailedPrecondition(f"node {node!r}: Kubernetes cannot be asked which machine it is: {error}") from None
    except (*API_ERRORS, WatchExpired) as error:
        raise _unavailable(node, "which machine it is", error) from None
    return NodeRecord(provider_id=found.spec.provider_id, labels=found.metadata.labels)


def _read(node: str, api: KubernetesApi | None) -> NodeObject:
    return (api or KubernetesApi()).get(f"/api/v1/nodes/{node}", NodeObject)


def _unavailable(node: str, what: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"node {node!r}: the Kubernetes API does not tell {what}: {error or 'no answer'}; the driver's service account "
        "needs the right to get nodes, and its pod the account's token (automountServiceAccountToken)"
    )
