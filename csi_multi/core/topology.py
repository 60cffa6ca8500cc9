"""Topology rules: the driver's prefix of keys in CSI messages, and what satisfies a requirement (csi-spec 2.4)."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract.backend import Backend, NodeLocal, Topology
from ..contract.errors import InvalidArgument
from ..contract.model import Segments, TopologyRequirement, Volume

NODE = "node"  # the key of the segment of node-local volumes


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


def strip_prefix(driver: str, segments: Segments) -> dict[str, str]:
    """Return segments without the driver's prefix. Raises InvalidArgument for a key with another prefix."""
    prefix = f"{driver}/"
    foreign = [key for key in segments if not key.lower().startswith(prefix)]
    if foreign:
        raise InvalidArgument(
            f"topology key {foreign[0]!r} is not this driver's; its keys start with {prefix!r}; for a zone write "
            f"{f'{prefix}zone'!r} (in Kubernetes in allowedTopologies of the StorageClass)"
        )
    return {key[len(prefix) :].lower(): value for key, value in segments.items()}
