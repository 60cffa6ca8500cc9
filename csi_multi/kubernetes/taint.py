"""Removes the startup taint from nodes whose kubelet knows the driver.

Nodes join with the taint NAME/starting, so that no pod with a volume is placed there before the driver runs. The
kubelet adds the driver to the CSINode object after NodeGetInfo was answered. One process removes the taint from all
nodes, so that no pod on a node needs the right to change Node objects.
"""

from __future__ import annotations

import logging
import time

from .api import API_ERRORS, KubernetesApi, RequestRefused, WatchExpired
from .objects import CsiNodeObject, NodeObject

log = logging.getLogger(__name__)

NODES, CSI_NODES = "/api/v1/nodes", "/apis/storage.k8s.io/v1/csinodes"
WATCH_SECONDS = 300  # of one watch; after each one all nodes are checked
RETRY_INTERVAL = 5.0  # seconds
CONFLICT = 409  # the node has changed since it was read
NOT_FOUND = 404


class StartupTaint:
    """The taint with one key, for one driver."""

    def __init__(self, api: KubernetesApi, driver: str, key: str = "") -> None:
        self._api, self._driver, self._key = api, driver, key or f"{driver}/starting"

    def run(self) -> None:
        """Run for ever; retry while the API cannot be reached."""
        while True:
            try:
                self.watch(self.check_all())
            except WatchExpired:
                continue
            except API_ERRORS as error:
                log.warning("the Kubernetes API cannot be used: %s: %s", type(error).__name__, error)
                time.sleep(RETRY_INTERVAL)

    def check_all(self) -> str:
        """Remove the taint from all nodes with the driver; return the version of CSINode objects to watch from."""
        csi_nodes, version = self._api.list_objects(CSI_NODES, CsiNodeObject)
        ready = {one.metadata.name for one in csi_nodes if self._has_driver(one)}
        for node in self._api.list_objects(NODES, NodeObject)[0]:
            if node.metadata.name in ready:
                self._remove_taint(node)
        return version

    def watch(self, version: str) -> None:
        """Remove the taint from each node whose kubelet registers the driver, until the watch ends."""
        for event, csi_node in self._api.watch(CSI_NODES, CsiNodeObject, version, WATCH_SECONDS):
            if event in ("ADDED", "MODIFIED") and self._has_driver(csi_node):
                self.check_node(csi_node.metadata.name)

    def check_node(self, name: str) -> None:
        """Remove the taint from one node, if it has it."""
        try:
            self._remove_taint(self._api.get(f"{NODES}/{name}", NodeObject))
        except RequestRefused as error:
            if error.status != NOT_FOUND:
                raise

    def _has_driver(self, csi_node: CsiNodeObject) -> bool:
        return any(driver.name == self._driver for driver in csi_node.spec.drivers)

    def _remove_taint(self, node: NodeObject) -> None:
        remaining = [taint for taint in node.spec.taints if taint.key != self._key]
        if len(remaining) == len(node.spec.taints):
            return None
        name, version = node.metadata.name, node.metadata.resource_version
        change = {"metadata": {"resourceVersion": version}, "spec": {"taints": remaining or None}}
        try:
            self._api.merge(f"{NODES}/{name}", change)
        except RequestRefused as error:
            if error.status == CONFLICT:
                return self.check_node(name)
            if error.status != NOT_FOUND:
                raise
        log.info("node %s: the driver is registered; taint %s removed", name, self._key)
        return None
