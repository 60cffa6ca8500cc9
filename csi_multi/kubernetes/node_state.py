"""Whether an operator has declared a node out of service."""

from __future__ import annotations

from ..contract import Unavailable
from .api import API_ERRORS, KubernetesApi, WatchExpired
from .objects import NodeObject

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"  # the taint after which Kubernetes deletes the node's pods


def is_out_of_service(node: str, api: KubernetesApi | None = None) -> bool:
    """Return whether the node has the taint and its kubelet is not ready, as Kubernetes itself asks for both.

    Raises Unavailable when the API does not answer, or does not know the node.
    """
    try:
        found = (api or KubernetesApi()).get(f"/api/v1/nodes/{node}", NodeObject)
    except (*API_ERRORS, WatchExpired) as error:
        raise Unavailable(
            f"node {node!r}: the Kubernetes API does not tell whether it is out of service: {error or 'no answer'}; "
            "the driver's service account needs the right to get nodes"
        ) from None
    ready = any(one.type == "Ready" and one.status == "True" for one in found.status.conditions)
    return not ready and any(taint.key == OUT_OF_SERVICE for taint in found.spec.taints)
