"""The table from backend features to CSI capabilities, and what the driver advertises from it.

The driver advertises the union over its instances, and the same union in every mode, because
GetPluginCapabilities must not differ between controller and node (csi-spec section 1).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
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
        if self is Mode.ALL or service == "plugin":
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
    ("controller", "GET_CAPACITY", Backend, False),  # the core answers for backends without Capacity
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


# Advertised only if all instances have them: an orchestrator takes a listed volume without published nodes
# for one that is attached nowhere.
REQUIRED_OF_ALL = frozenset({b.PublishedNodes})


@dataclass(frozen=True, slots=True)
class AdvertisedCapabilities:
    """What this driver advertises: capabilities by service, and which services this process serves."""

    mode: Mode
    names: frozenset[tuple[str, str]]
    online_expansion: bool
    unpublished_expansion: bool  # some volumes only while they are published nowhere
    broken: tuple[str, ...] = ()  # instances that could not be loaded, and might add capabilities

    def current(self) -> AdvertisedCapabilities:
        """Return itself: it replaces CurrentCapabilities where the configuration never changes."""
        return self

    @property
    def expansion_types(self) -> list[str]:
        """Return CSI's types of VolumeExpansion."""
        types = {"ONLINE": self.online_expansion, "OFFLINE": self.unpublished_expansion}
        return [name for name, present in types.items() if present]

    def of(self, service: str) -> list[str]:
        """Return the capabilities of a service, in the table's order."""
        ordered = dict.fromkeys((row[0], row[1]) for row in CAPABILITIES)
        return [name for owner, name in ordered if owner == service and (owner, name) in self.names]

    def allows(self, service: str, capability: str) -> bool:
        """Whether an RPC that requires this capability ("": only the service) is served here."""
        if not self.mode.serves(service):
            return False
        if service == "group":
            return ("plugin", "GROUP_CONTROLLER_SERVICE") in self.names
        if service == "metadata":
            return ("plugin", "SNAPSHOT_METADATA_SERVICE") in self.names
        return not capability or (service, capability) in self.names

    def refusal(self, rpc: str, service: str) -> StorageError:
        """Return the error for an RPC that is not allowed; it is final only while no instance is broken."""
        if self.broken and self.mode.serves(service):
            return Unavailable(f"{rpc} is not available while these backends are broken: {', '.join(self.broken)}")
        return Unsupported(f"this driver does not offer {rpc} in mode {self.mode.value!r} with its configured backends")


def advertise(
    backends: Iterable[Backend], mode: Mode, alpha: bool, broken: Iterable[str] = (), *, attach: bool = False
) -> AdvertisedCapabilities:
    """Derive what to advertise from the features of the configured backends.

    `attach`: the orchestrator attaches every volume, also for backends without Attach.
    """
    present = tuple(backends)
    names = {
        (service, name)
        for service, name, feature, is_alpha in CAPABILITIES
        if (alpha or not is_alpha) and _driver_has(present, feature)
    }
    if attach:
        names.add(("controller", "PUBLISH_UNPUBLISH_VOLUME"))
    expandable = [backend for backend in present if isinstance(backend, b.Expand)]
    return AdvertisedCapabilities(
        mode=mode,
        names=frozenset(names),
        online_expansion=any(backend.online for backend in expandable),
        unpublished_expansion=any(not backend.online for backend in expandable),
        broken=tuple(sorted(broken)),
    )


def reasons_not_advertised(backends: Mapping[str, Backend], advertised: AdvertisedCapabilities) -> dict[str, list[str]]:
    """Return, by reason, the capabilities that are not advertised although an instance has their feature."""
    found: dict[str, list[str]] = {}
    for service, name, feature, is_alpha in CAPABILITIES:
        owners = [instance for instance, backend in backends.items() if isinstance(backend, feature)]
        others = ", ".join(sorted(backends.keys() - set(owners)))
        if not owners or (service, name) in advertised.names:
            continue
        if is_alpha:
            reason = "alpha in CSI, and driver.alpha is not true"
        elif feature in REQUIRED_OF_ALL:
            reason = f"all instances must have {feature.__name__}, and these have not: {others}"
        else:
            reason = "with this configuration the volumes can be used on every node"
        found.setdefault(reason, []).append(f"{service} {name}")
    return found


class CurrentCapabilities:
    """What is advertised for the present configuration; after a reload it is derived again.

    `generation` returns the number of the present configuration; `derive` returns what is advertised for it.
    """

    def __init__(self, generation: Callable[[], int], derive: Callable[[], AdvertisedCapabilities]) -> None:
        self._generation = generation
        self._derive = derive
        self._cached = (generation(), derive())

    def current(self) -> AdvertisedCapabilities:
        generation = self._generation()
        if self._cached[0] != generation:
            self._cached = (generation, self._derive())
        return self._cached[1]


def _driver_has(present: tuple[Backend, ...], feature: type[Backend]) -> bool:
    """Whether the driver has a feature; it has those of every backend even when no backend could be loaded."""
    if feature is Backend:
        return True
    instances = [_instance_has(backend, feature) for backend in present]
    return any(instances) and (feature not in REQUIRED_OF_ALL or all(instances))


def _instance_has(backend: Backend, feature: type[Backend]) -> bool:
    """Whether an instance has a feature in its present configuration."""
    return isinstance(backend, feature) and not (
        isinstance(backend, b.Topology) and feature is b.Topology and backend.everywhere
    )
