"""The nodes of a Kubernetes cluster: Node objects, listed once and then watched.

Node objects, not pods: a pod that is being replaced must not make its node's volumes look gone. As long as the API
cannot be reached, what was seen last stays; before the first list, nothing can be said.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from ..config.cluster import KubernetesSection
from ..contract.errors import Unavailable
from ..contract.model import Segments
from ..kubernetes.api import GONE, TROUBLE, Api, Expired, Refused

log = logging.getLogger(__name__)

WATCH = 60  # seconds of one watch; what was missed by a connection that died in silence is then seen
PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before trying again, after one failure, two, ...
NODES = "/api/v1/nodes"


class Address(msgspec.Struct):
    type: str
    address: str


class Status(msgspec.Struct):
    addresses: list[Address] = []
    code: int = 0


class Metadata(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] = {}
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class NodeObject(msgspec.Struct):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    status: Status | str = msgspec.field(default_factory=Status)
    code: int = 0  # of a Status object, which an ERROR event has in its place


class Event(msgspec.Struct):
    type: str
    object: NodeObject


class KubernetesNodes:
    """Addresses from the Kubernetes API. `driver` is the prefix of the labels that say where a node is."""

    def __init__(self, settings: KubernetesSection, driver: str, pauses: tuple[float, ...] = PAUSES) -> None:
        self._settings = settings
        self._prefix = f"{driver}/"
        self._pauses = pauses
        self._nodes: dict[str, NodeObject] = {}
        self._listed = threading.Event()
        self._stop = threading.Event()
        self._api = Api(settings.server, settings.credentials)
        self._query = {"labelSelector": settings.labels} if settings.labels else {}
        self._trouble = "it has not been asked yet"

    def names(self) -> list[str]:
        return sorted(self._known())

    def of(self, node: str) -> str | None:
        found = self._known().get(node)
        if found is None or isinstance(found.status, str):
            return None
        addresses = [one.address for one in found.status.addresses if one.type == self._settings.address]
        if not addresses:
            return None
        host = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
        return f"{host}:{self._settings.port}"

    def segments(self, node: str) -> Segments | None:
        """What the kubelet has written into the labels, from the driver's own NodeGetInfo."""
        found = self._known().get(node)
        labels = found.metadata.labels if found else {}
        return {key.removeprefix(self._prefix): labels[key] for key in labels if key.startswith(self._prefix)} or None

    def start(self) -> None:
        threading.Thread(target=self._run, name="kubernetes-nodes", daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        self._api.close()

    def _known(self) -> dict[str, NodeObject]:
        if not self._listed.is_set():
            raise Unavailable(f"the nodes of the cluster are not known yet: the Kubernetes API: {self._trouble}")
        return self._nodes

    def _run(self) -> None:
        """List, then watch; again from the last version when a watch ends, from the start when that is too old."""
        version, failures = "", 0
        while not self._stop.is_set():
            try:
                version = self._watch(version) if version else self._list()
                failures = 0
                continue
            except Expired:
                version = ""
                continue
            except TROUBLE as error:
                self._trouble = f"{type(error).__name__}: {error}"
            if not self._stop.is_set():
                log.warning("the Kubernetes API cannot be watched: %s", self._trouble)
                self._stop.wait(self._pauses[min(failures, len(self._pauses) - 1)])
                failures += 1

    def _list(self) -> str:
        """Take all Node objects; return their version."""
        found, version = self._api.list(NODES, NodeObject, self._query)
        self._nodes = {one.metadata.name: one for one in found}
        self._listed.set()
        log.info("nodes of the cluster: %d", len(found))
        return version

    def _watch(self, version: str) -> str:
        """Take changes as they come until the watch ends; return the version to go on from."""
        decoder = msgspec.json.Decoder(Event)
        for line in self._api.watch(NODES, version, WATCH, self._query):
            event = decoder.decode(line)
            if event.type == "ERROR":
                raise Expired if event.object.code == GONE else Refused(line.decode(errors="replace")[:200])
            self._apply(event)
            version = event.object.metadata.resource_version or version
        return version

    def _apply(self, event: Event) -> None:
        """The mapping is replaced, never changed: readers take no lock."""
        nodes, name = dict(self._nodes), event.object.metadata.name
        if event.type in ("ADDED", "MODIFIED"):
            nodes[name] = event.object
        elif event.type == "DELETED":
            nodes.pop(name, None)
        self._nodes = nodes
