"""The ceph command: how much room there is, how the cluster is, and work for its manager."""

from __future__ import annotations

import logging

from csi_multi.contract import PermissionDenied

from . import rows
from .client import Client, read
from .config import Config
from .gate import Gate
from .rows import Room, Status
from .shell import Shell
from .statuses import Absent, Refused, Slow

log = logging.getLogger(__name__)

JSON = ("--format", "json")


class Ceph:
    """One cluster, as the instance's user. Thread-safe."""

    def __init__(self, config: Config, shell: Shell | None = None, gate: Gate | None = None) -> None:
        self._client = Client(config, shell, gate)

    def room(self, pool: str) -> Room:
        """Raises Absent when there is no such pool."""
        told = read("ceph df", self._client.ceph("df", "detail", *JSON), lambda told: rows.room(told, pool))
        if told is None:
            raise Absent(f"the cluster has no pool {pool!r}; create it, or name another one")
        return told

    def status(self) -> Status:
        return read("ceph status", self._client.ceph("status", *JSON), rows.status)

    def flatten_later(self, spec: str) -> bool:
        """Have the manager flatten an image. False where it, its module rbd_support or the right to it is missing."""
        try:
            self._client.ceph("rbd", "task", "add", "flatten", spec, brief=True)
        except (Refused, Slow, PermissionDenied) as error:
            log.info("the manager takes no work: %s", error)
            return False
        return True
