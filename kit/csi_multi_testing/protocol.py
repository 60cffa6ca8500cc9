"""The operations of an orchestrator on one backend, so that the same checks run in process and over CSI.

in_process.py has the client for a backend object, csi_wire.py the one for a driver. Answers are values of the
contract's model, failures are the contract's errors.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from csi_multi.contract import (
    AccessMode,
    Capability,
    CapacityReport,
    Expansion,
    Extent,
    GroupSnapshot,
    HealthEntry,
    Node,
    Page,
    Segments,
    SizeRange,
    Snapshot,
    Source,
    StorageError,
    Strings,
    TopologyRequirement,
    Volume,
    VolumeHealth,
)

BLOCK = Capability(mode=AccessMode.SINGLE_NODE_WRITER)


class Target(enum.Enum):
    """What a check is run against."""

    ANY = "any"  # either of the two
    BACKEND = "backend"  # the backend object in this process, with faults at every call
    WIRE = "wire"  # a driver process, over CSI


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeSpec:
    """A CreateVolume request as an orchestrator makes it: class parameters are strings."""

    name: str
    size: SizeRange = field(default_factory=SizeRange)
    capabilities: tuple[Capability, ...] = (BLOCK,)
    parameters: Strings = field(default_factory=dict)
    mutable: Strings = field(default_factory=dict)
    source: Source | None = None
    topology: TopologyRequirement | None = None
    secrets: Strings = field(default_factory=dict, repr=False)


class BackendProtocol(Protocol):
    """The operations of a client. Over CSI a Volume's stamp has only its context and source: CSI shows no more."""

    target: Target

    def kind_of(self, error: type[StorageError]) -> type[StorageError]:
        """Return the class as which this error arrives: CSI has fewer codes than the contract has classes."""
        ...

    def create(self, spec: VolumeSpec) -> Volume: ...
    def delete(self, handle: str) -> None: ...
    def get(self, handle: str) -> Volume: ...
    def list_volumes(self, cursor: str = "", limit: int = 0) -> Page[Volume]: ...
    def expand(self, handle: str, size: SizeRange) -> Expansion: ...
    def modify(self, handle: str, mutable: Strings) -> None: ...
    def capacity(
        self, segments: Segments | None = None, capabilities: tuple[Capability, ...] = ()
    ) -> CapacityReport: ...
    def snapshot(self, name: str, source: str) -> Snapshot: ...
    def get_snapshot(self, handle: str) -> Snapshot: ...
    def delete_snapshot(self, handle: str) -> None: ...
    def list_snapshots(self, cursor: str = "", limit: int = 0, source: str | None = None) -> Page[Snapshot]: ...
    def group(self, name: str, sources: Sequence[str]) -> GroupSnapshot: ...
    def get_group(self, handle: str) -> GroupSnapshot: ...
    def delete_group(self, handle: str) -> None: ...
    def attach(
        self, handle: str, node: Node, capability: Capability = BLOCK, *, read_only: bool = False
    ) -> Strings: ...
    def detach(self, handle: str, node: Node | None) -> None: ...
    def allocated(self, handle: str, offset: int = 0) -> list[Extent]: ...
    def changed(self, base: str, target: str, offset: int = 0) -> list[Extent]: ...
    def health(self, handle: str) -> tuple[HealthEntry, ...]: ...
    def list_health(self, cursor: str = "", limit: int = 0) -> Page[VolumeHealth]: ...
    def places(self, volume: Volume) -> tuple[Segments, ...]:
        """Return the segments from which a volume is reachable; empty: reachable from everywhere."""
        ...

    def segments(self) -> Segments:
        """Return the topology segments of this node."""
        ...

    def device_path(self, handle: str, *, read_only: bool = False) -> AbstractContextManager[Path]:
        """Yield the path of a block device with the volume's data; it is closed after the block."""
        ...

    def restart(self) -> None:
        """Kill the process without warning, and start it again."""
        ...

    def close(self) -> None: ...


def read_from(path: Path, offset: int, length: int) -> bytes:
    """Read from a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)


def write_to(path: Path, offset: int, data: bytes) -> None:
    """Write to a device and sync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
