"""The node engine's face: everything the rpc layer may ask of a node, for every backend alike.

Each method looks first (mount table, sysfs), then acts, and may be repeated from any intermediate
state. Nothing is kept in memory.
"""

from __future__ import annotations

from pathlib import Path

from ..contract.backend import Backend
from ..contract.machine import Host
from ..contract.model import HealthEntry, SizeRange
from . import health, publish, stage, stats
from .requests import PublishRequest, StageRequest, Usage


class Engine:
    def __init__(self, host: Host) -> None:
        self._host = host

    def stage(self, backend: Backend, request: StageRequest) -> None:
        """Mount the volume's device at the staging path, formatted when it is proven blank."""
        stage.stage(self._host, backend, request)

    def unstage(self, backend: Backend, handle: str, staging: Path) -> None:
        """Unmount and close the device. The staging directory belongs to the caller and stays."""
        stage.unstage(self._host, backend, handle, staging)

    def publish(self, backend: Backend, request: PublishRequest) -> None:
        """Show the staged volume at the target."""
        publish.publish(self._host, backend, request)

    def unpublish(self, backend: Backend, handle: str, target: Path) -> None:
        """Unmount the target and remove it."""
        publish.unpublish(self._host, backend, handle, target)

    def expand(self, backend: Backend, handle: str, path: Path, size: SizeRange) -> int:
        """Let the volume at this path take its device's new size; return that in bytes."""
        return stats.expand(self._host, backend, handle, path, size)

    def usage(self, backend: Backend, handle: str, path: Path) -> tuple[Usage, ...]:
        """Return bytes, and inodes where the filesystem counts them. Raises NotFound."""
        return stats.usage(backend, handle, path)

    def health(self, backend: Backend, handle: str) -> tuple[HealthEntry, ...]:
        """Return what is wrong with the volume seen from this node, each (status, reason) once."""
        return health.health(backend, handle)
