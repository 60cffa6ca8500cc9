"""Takes the startup taint off nodes whose kubelet knows the driver.

Nodes join with the taint NAME/starting, so that no pod with a volume is placed before its driver runs. That is told
by the CSINode object, which the kubelet writes after NodeGetInfo was answered. It is done here, in one place, so
that no pod on a node needs the right to change Node objects.
"""

from __future__ import annotations

import logging
import time

import msgspec

from .api import GONE, TROUBLE, Api, Expired, Refused
from .objects import CsiNode, CsiNodeEvent, Node

log = logging.getLogger(__name__)

NODES, CSI_NODES = "/api/v1/nodes", "/apis/storage.k8s.io/v1/csinodes"
WATCH = 300  # seconds of one watch; after each all nodes are looked at
PAUSE = 5.0  # seconds before trying again
CONFLICT = 409  # somebody changed the node since it was read
NOT_FOUND = 404


class StartupTaint:
    """The taint with one key, for one driver."""

    def __init__(self, api: Api, driver: str, key: str = "") -> None:
        self._api, self._driver, self._key = api, driver, key or f"{driver}/starting"

    def run(self) -> None:
        """Go on for ever; while the API cannot be reached, try again."""
        while True:
            try:
                self.follow(self.sweep())
            except Expired:
                continue
            except TROUBLE as error:
                log.warning("the Kubernetes API: %s: %s", type(error).__name__, error)
                time.sleep(PAUSE)

    def sweep(self) -> str:
        """Look at all nodes; return the version of CSINode objects to follow from."""
        registered, version = self._api.list(CSI_NODES, CsiNode)
        ready = {one.metadata.name for one in registered if self._known(one)}
        for node in self._api.list(NODES, Node)[0]:
            if node.metadata.name in ready:
                self._take_off(node)
        return version

    def follow(self, version: str) -> None:
        """Look at each node whose kubelet gets to know the driver, until the watch ends."""
        for line in self._api.watch(CSI_NODES, version, WATCH):
            event = msgspec.json.decode(line, type=CsiNodeEvent)
            if event.type == "ERROR":
                raise Expired if event.object.code == GONE else Refused(line.decode(errors="replace")[:200])
            if event.type in ("ADDED", "MODIFIED") and self._known(event.object):
                self.settle(event.object.metadata.name)

    def settle(self, name: str) -> None:
        """Take the taint off one node, if it is there."""
        try:
            self._take_off(self._api.get(f"{NODES}/{name}", Node))
        except Refused as error:
            if error.status != NOT_FOUND:
                raise

    def _known(self, node: CsiNode) -> bool:
        return any(driver.name == self._driver for driver in node.spec.drivers)

    def _take_off(self, node: Node) -> None:
        left = [taint for taint in node.spec.taints if taint.key != self._key]
        if len(left) == len(node.spec.taints):
            return None
        name, version = node.metadata.name, node.metadata.version
        change = {"metadata": {"resourceVersion": version}, "spec": {"taints": left or None}}
        try:
            self._api.merge(f"{NODES}/{name}", change)
        except Refused as error:
            if error.status == CONFLICT:
                return self.settle(name)
            if error.status != NOT_FOUND:
                raise
        log.info("node %s: the driver is registered; taint %s taken off", name, self._key)
        return None
