"""Feature -> CSI capability, one table; what the driver advertises follows from it.

The driver advertises the union over its instances, and the same union in every mode, because
GetPluginCapabilities must not differ between controller and node (csi-spec section 1).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..contract import backend as b
from ..contract.backend import Backend
from ..contract.errors import StorageError, Unavailable, Unsupported


class Mode(enum.Enum):
    """Which services a process serves; Identity is always served."""

    ALL = "all"
    CONTROLLER = "controller"
    NODE = "node"

    def serves(self, service: str) -> bool:
        if self is Mode.ALL:
            return True
        return (service == "node") == (self is Mode.NODE)


# (service, capability, feature that brings it, alpha in CSI 1.13)
CAPABILITIES: tuple[tuple[str, str, type[Backend], bool], ...] = (
    ("plugin", "CONTROLLER_SERVICE", Backend, False),
    ("plugin", "VOLUME_ACCESSIBILITY_CONSTRAINTS", b.Topology, False),
    ("plugin", "VOLUME_ACCESSIBILITY_CONSTRAINTS", b.NodeLocal, False),
    ("plugin", "GROUP_CONTROLLER_SERVICE", b.GroupSnapshots, False),
    ("plugin", "SNAPSHOT_METADATA_SERVICE", b.ChangedBlocks, True),
    ("controller", "CREATE_DELETE_VOLUME", Backend, False),
    ("controller", "PUBLISH_UNPUBLISH_VOLUME", b.Attach, False),
    ("controller", "LIST_VOLUMES", b.ListVolumes, False),
    ("controller", "GET_CAPACITY", Backend, False),  # the core answers for those without Capacity
    ("controller", "CREATE_DELETE_SNAPSHOT", b.Snapshots, False),
    ("controller", "LIST_SNAPSHOTS", b.ListSnapshots, False),
    ("controller", "CLONE_VOLUME", b.Clone, False),
    ("controller", "PUBLISH_READONLY", b.ReadOnlyAttach, False),
    ("controller", "EXPAND_VOLUME", b.Expand, False),
    ("controller", "LIST_VOLUMES_PUBLISHED_NODES", b.PublishedNodes, False),
    ("controller", "GET_VOLUME", Backend, True),
    # Kubernetes maps ReadWriteOnce(Pod) onto these modes, so they are on although alpha.
    ("controller", "SINGLE_NODE_MULTI_WRITER", Backend, False),
    ("controller", "MODIFY_VOLUME", b.Modify, False),
    ("controller", "GET_SNAPSHOT", b.Snapshots, True),
    ("controller", "GET_VOLUME_HEALTH", b.VolumeHealthReporter, True),
    ("controller", "LIST_VOLUME_HEALTH", b.VolumeHealthLister, True),
    ("group", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT", b.GroupSnapshots, False),
    ("node", "STAGE_UNSTAGE_VOLUME", Backend, False),
    ("node", "GET_VOLUME_STATS", Backend, False),
    ("node", "EXPAND_VOLUME", b.Expand, False),
    ("node", "SINGLE_NODE_MULTI_WRITER", Backend, False),
    ("node", "VOLUME_MOUNT_GROUP", Backend, False),
    ("node", "GET_VOLUME_HEALTH", Backend, True),
    ("node", "GET_STORAGE_HEALTH", b.NodeHealthReporter, True),
)


# Kept by all instances or not advertised: from a listing without published nodes an orchestrator
# concludes that the volume is attached nowhere.
REQUIRED_OF_ALL = frozenset({b.PublishedNodes})


@dataclass(frozen=True, slots=True)
class AdvertisedCapabilities:
    """What this driver advertises: capabilities by service, and which services this process serves."""

    mode: Mode
    names: frozenset[tuple[str, str]]
    online_expansion: bool
    offline_expansion: bool
    broken: tuple[str, ...] = ()  # instances that might bring more, if they could be loaded

    def now(self) -> AdvertisedCapabilities:
        """Return itself: it can stand where an Offer can, for a configuration that never changes."""
        return self

    def of(self, service: str) -> list[str]:
        """Return the capabilities of a service, in the table's order."""
        ordered = dict.fromkeys((row[0], row[1]) for row in CAPABILITIES)
        return [name for owner, name in ordered if owner == service and (owner, name) in self.names]

    def allows(self, service: str, capability: str) -> bool:
        """Whether an RPC gated by this capability ("" for the service alone) is served here."""
        if not self.mode.serves(service):
            return False
        if service == "group":
            return ("plugin", "GROUP_CONTROLLER_SERVICE") in self.names
        if service == "metadata":
            return ("plugin", "SNAPSHOT_METADATA_SERVICE") in self.names
        return not capability or (service, capability) in self.names

    def refusal(self, rpc: str, service: str) -> StorageError:
        """Return the answer to an RPC that is not allowed; a final one only when it is sure."""
        if self.broken and self.mode.serves(service):
            return Unavailable(f"{rpc} is not offered while these backends are broken: {', '.join(self.broken)}")
        return Unsupported(f"{rpc} is not offered by this driver in mode {self.mode.value!r}")


def advertise(
    backends: Iterable[Backend], mode: Mode, alpha: bool, broken: Iterable[str] = (), *, attach: bool = False
) -> AdvertisedCapabilities:
    """Derive what to advertise from the features of the configured backends.

    `attach`: the orchestrator attaches every volume, also where the backend has nothing to do for it.
    """
    present = tuple(backends)
    names = {
        (service, name)
        for service, name, feature, is_alpha in CAPABILITIES
        if (alpha or not is_alpha) and _driver_has(present, feature)
    }
    if attach:
        names.add(("controller", "PUBLISH_UNPUBLISH_VOLUME"))
    growing = [backend for backend in present if isinstance(backend, b.Expand)]
    return AdvertisedCapabilities(
        mode=mode,
        names=frozenset(names),
        online_expansion=any(backend.online for backend in growing),
        offline_expansion=any(not backend.online for backend in growing),
        broken=tuple(sorted(broken)),
    )


class CurrentCapabilities:
    """What is advertised for the instances of the present configuration: another one may bring other features.

    `generation` tells one configuration from another; `make` derives what is advertised for the present one.
    """

    def __init__(self, generation: Callable[[], int], make: Callable[[], AdvertisedCapabilities]) -> None:
        self._generation = generation
        self._make = make
        self._made = (generation(), make())

    def now(self) -> AdvertisedCapabilities:
        generation = self._generation()
        if self._made[0] != generation:
            self._made = (generation, self._make())
        return self._made[1]


def _driver_has(present: tuple[Backend, ...], feature: type[Backend]) -> bool:
    """Whether the driver has a feature; what every backend has needs none that could be loaded."""
    if feature is Backend:
        return True
    having = [_instance_has(backend, feature) for backend in present]
    return any(having) and (feature not in REQUIRED_OF_ALL or all(having))


def _instance_has(backend: Backend, feature: type[Backend]) -> bool:
    """Whether an instance has a feature, as it is configured."""
    return isinstance(backend, feature) and not (
        isinstance(backend, b.Topology) and feature is b.Topology and backend.everywhere
    )
