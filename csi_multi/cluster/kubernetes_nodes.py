"""The nodes of a Kubernetes cluster: Node objects, listed once and then watched.

Node objects and not pods: the volumes of a node must not disappear while its pod is replaced. While the API cannot be
reached, the last known nodes stay in use; before the first list, the nodes are not known.
"""

from __future__ import annotations

import logging
import threading

from ..config.cluster import KubernetesSection
from ..contract.errors import Unavailable
from ..contract.model import Segments
from ..kubernetes.api import API_ERRORS, KubernetesApi, WatchExpired
from ..kubernetes.objects import NodeObject

log = logging.getLogger(__name__)

WATCH_SECONDS = 60  # of one watch; the next one finds what a silently broken connection has missed
RETRY_INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds after one failure, two failures, ...
NODES = "/api/v1/nodes"


class KubernetesNodes:
    """Node addresses from the Kubernetes API. `driver` is the prefix of the labels that contain the topology."""

    def __init__(
        self, settings: KubernetesSection, driver: str, retry_intervals: tuple[float, ...] = RETRY_INTERVALS
    ) -> None:
        self._settings = settings
        self._prefix = f"{driver}/"
        self._retry_intervals = retry_intervals
        self._nodes: dict[str, NodeObject] = {}
        self._listed = threading.Event()
        self._stop = threading.Event()
        self._api = KubernetesApi(settings.server, settings.credentials)
        self._query = {"labelSelector": settings.labels} if settings.labels else {}
        self._failure = "no request has been sent yet"

    def names(self) -> list[str]:
        return sorted(self._known_nodes())

    def address(self, node: str) -> str | None:
        found = self._known_nodes().get(node)
        if found is None:
            return None
        addresses = [one.address for one in found.status.addresses if one.type == self._settings.address]
        if not addresses:
            return None
        host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
        return f"{host}:{self._settings.port}"

    def segments(self, node: str) -> Segments | None:
        """Return what the kubelet has written into the labels, from the driver's own NodeGetInfo."""
        found = self._known_nodes().get(node)
        labels = found.metadata.labels if found else {}
        return {key.removeprefix(self._prefix): labels[key] for key in labels if key.startswith(self._prefix)} or None

    def start(self) -> None:
        threading.Thread(target=self._run, name="kubernetes-nodes", daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        self._api.close()

    def _known_nodes(self) -> dict[str, NodeObject]:
        if not self._listed.is_set():
            raise Unavailable(
                f"the nodes of the cluster are not known yet, because the Kubernetes API could not be read: "
                f"{self._failure}; try again"
            )
        return self._nodes

    def _run(self) -> None:
        """List, then watch. A watch continues from the last version; when that is too old, list again."""
        version, failures = "", 0
        while not self._stop.is_set():
            try:
                version = self._watch(version) if version else self._list()
                failures = 0
                continue
            except WatchExpired:
                version = ""
                continue
            except API_ERRORS as error:
                self._failure = f"{type(error).__name__}: {error}"
            if not self._stop.is_set():
                log.warning("the Kubernetes API cannot be watched: %s", self._failure)
                self._stop.wait(self._retry_intervals[min(failures, len(self._retry_intervals) - 1)])
                failures += 1

    def _list(self) -> str:
        """Replace all nodes by those of the API; return their version."""
        found, version = self._api.list_objects(NODES, NodeObject, self._query)
        self._nodes = {one.metadata.name: one for one in found}
        self._listed.set()
        log.info("nodes of the cluster: %d", len(found))
        return version

    def _watch(self, version: str) -> str:
        """Apply changes until the watch ends; return the version to continue from."""
        for event, node in self._api.watch(NODES, NodeObject, version, WATCH_SECONDS, self._query):
            self._apply(event, node)
            version = node.metadata.resource_version or version
        return version

    def _apply(self, event: str, node: NodeObject) -> None:
        """Replace the mapping instead of changing it, because readers take no lock."""
        nodes = dict(self._nodes)
        if event in ("ADDED", "MODIFIED"):
            nodes[node.metadata.name] = node
        elif event == "DELETED":
            nodes.pop(node.metadata.name, None)
        self._nodes = nodes
