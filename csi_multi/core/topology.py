"""Topology rules: the driver's prefix of keys in CSI messages, and what satisfies a requirement (csi-spec 2.4)."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract.backend import Backend, NodeLocal, Topology
from ..contract.errors import InvalidArgument
from ..contract.model import Segments, TopologyRequirement, Volume

NODE = "node"  # the key of the segment of node-local volumes
# Node labels that an orchestrator or a cloud provider writes, and the segment that each one names. Requests may use
# them in place of the driver's own keys; a backend says whether it reports them, too (Topology.well_known_keys).
WELL_KNOWN_KEYS = {
    "topology.kubernetes.io/zone": "zone",
    "topology.kubernetes.io/region": "region",
    "topology.k8s.aws/zone-id": "zone-id",
}
_WELL_KNOWN = {segment: key for key, segment in WELL_KNOWN_KEYS.items()}


def constrained(backend: Backend) -> bool:
    """Whether the backend's volumes are reachable from some nodes only."""
    return isinstance(backend, NodeLocal) or (isinstance(backend, Topology) and not backend.everywhere)


def node_segments(backend: Backend, node: str) -> dict[str, str]:
    """Return the segments of a node for this backend, without the driver's prefix."""
    segments = dict(backend.node_segments()) if isinstance(backend, Topology) else {}
    return segments | ({NODE: node} if isinstance(backend, NodeLocal) else {})


def of_volume(backend: Backend, volume: Volume) -> tuple[Segments, ...]:
    """Return the segments that a volume is reachable from, its node included; empty: reachable from everywhere."""
    if not isinstance(backend, NodeLocal):
        return volume.topology
    node = {NODE: backend.node_of(volume.handle)}
    return tuple({**segments, **node} for segments in volume.topology or ({},))


def satisfies(reachable: Sequence[Segments], requirement: TopologyRequirement | None) -> bool:
    """Whether a volume reachable from these segments meets the requirement.

    It must be reachable from one requisite topology; preferred ones alone are no condition. A requisite topology
    may contain segments of other instances too, so only the volume's own keys are compared.
    """
    if not reachable or requirement is None or not requirement.requisite:
        return True
    return any(is_inside(wanted, segments) for wanted in requirement.requisite for segments in reachable)


def is_inside(place: Segments, segments: Segments) -> bool:
    """Whether the place has all of these segments."""
    return all(place.get(key) == value for key, value in segments.items())


def add_prefix(driver: str, segments: Segments) -> dict[str, str]:
    return {f"{driver}/{key}": value for key, value in segments.items()}


def add_well_known(driver: str, segments: Segments) -> dict[str, str]:
    """Return segments under the well-known keys, those that have none under the driver's own key."""
    return {_WELL_KNOWN.get(key, f"{driver}/{key}"): value for key, value in segments.items()}


def volume_keys(driver: str, backend: Backend, segments: Segments) -> dict[str, str]:
    """Return a volume's segments as CSI messages have them: each under one key, which programs that start nodes know.

    A node that does not run yet has its well-known labels in the plans of such a program, and no label of a driver.
    """
    well_known = isinstance(backend, Topology) and backend.well_known_keys
    return add_well_known(driver, segments) if well_known else add_prefix(driver, segments)


def strip_prefix(driver: str, segments: Segments) -> dict[str, str]:
    """Return segments by their names: without the driver's prefix, or what a well-known key stands for.

    Raises InvalidArgument for another key, and for two keys of one segment with different values.
    """
    prefix = f"{driver}/"
    found: dict[str, str] = {}
    for key, value in segments.items():
        name = WELL_KNOWN_KEYS.get(key.lower()) or (
            key[len(prefix) :].lower() if key.lower().startswith(prefix) else ""
        )
        if not name:
            raise InvalidArgument(
                f"topology key {key!r} is not this driver's; its keys start with {prefix!r}; for a zone write "
                f"{f'{prefix}zone'!r} or {_WELL_KNOWN['zone']!r} (in Kubernetes in allowedTopologies of the "
                "StorageClass)"
            )
        if found.setdefault(name, value) != value:
            raise InvalidArgument(
                f"topology: {name!r} has the values {found[name]!r} and {value!r}; {key!r} and {f'{prefix}{name}'!r} "
                "mean the same, so leave one out"
            )
    return found
