"""In which pool of an instance a volume is: by the requested topology, and by what its class says.

ceph-csi's `topologyConstrainedPools` names pools and their segments in every class. Here the instance has them, so a
class may name those of the instance only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from csi_multi.contract import FailedPrecondition, InvalidArgument, ResourceExhausted, Segments, TopologyRequirement

from .config import Config, Parameters
from .pool_rules import KEY, ConstrainedPool, constraint


def allowed(configs: Iterable[Config], parameters: Parameters | None) -> list[Config]:
    """Return the pools that a class allows. Raises InvalidArgument for what is not the instance's."""
    found = {one.pool: one for one in configs}
    if parameters is None:
        return [*found.values()]
    if parameters.pool:
        _refuse_unknown("pool", parameters.pool, found)
    wanted = constraint(parameters.topology_constrained_pools)
    for one in wanted:
        _refuse_unknown(KEY, one.pool, found)
        _refuse_other_place(one, found[one.pool])
    names = {one.pool for one in wanted} or {*found}
    if parameters.pool and not wanted:  # ceph-csi, too, prefers the list
        names = {parameters.pool}
    return [config for name, config in found.items() if name in names]


def _refuse_unknown(key: str, pool: str, found: Mapping[str, Config]) -> None:
    if pool not in found:
        raise InvalidArgument(
            f"'{key}' {pool!r} is not a pool of this instance, which has {', '.join(map(repr, found))}; leave it out, "
            "add it to `pools` of the instance, or name the instance of that pool as 'backend'"
        )


def _refuse_other_place(wanted: ConstrainedPool, config: Config) -> None:
    if wanted.segments != config.topology:
        raise InvalidArgument(
            f"'{KEY}': pool {wanted.pool!r} has the segments {wanted.segments}, and the instance's `topology` for it "
            f"is {dict(config.topology)}; correct one of them, or leave the parameter out"
        )
    if wanted.data_pool and wanted.data_pool != (config.data_pool or config.pool):
        raise InvalidArgument(
            f"'{KEY}': pool {wanted.pool!r} has the dataPool {wanted.data_pool!r}, and the instance's `data_pool` for "
            f"it is {config.data_pool!r}; correct one of them, or leave the parameter out"
        )


def is_reached(config: Config, segments: Segments) -> bool:
    """Return whether nodes with these segments reach the pool."""
    return all(segments.get(key) == value for key, value in config.topology.items())


def by_topology(configs: list[Config], wanted: TopologyRequirement | None) -> list[Config]:
    """Return the pools that a volume may be in, the preferred one first. Raises ResourceExhausted when there is none.

    A pool has to be reached from one of the requisite topologies. Where several are, the first in the order of the
    preferred ones, then of the configuration.
    """
    if not wanted or not wanted.candidates:
        return configs
    places = wanted.requisite or ({},)
    usable = [one for one in configs if not wanted.requisite or any(is_reached(one, place) for place in places)]
    if not usable:
        raise ResourceExhausted(
            f"{_reached_from(configs)}, and no requisite topology matches that; set allowedTopologies of the "
            "StorageClass accordingly"
        )
    order = [one for place in wanted.candidates for one in usable if is_reached(one, place)]
    return [*{one.pool: one for one in (*order, *usable)}.values()]


def _reached_from(configs: list[Config]) -> str:
    if len(configs) == 1:
        return f"this cluster is reached from {dict(configs[0].topology)}"
    return ", ".join(f"pool {one.pool!r} is reached from {dict(one.topology)}" for one in configs)


def node_segments(configs: Iterable[Config], node: str) -> dict[str, str]:
    """Return the segments of a node: those of the pools that it reaches. Raises FailedPrecondition."""
    reached = [one for one in configs if any(fnmatchcase(node, pattern) for pattern in one.nodes)]
    if not reached:
        patterns = ", ".join(dict.fromkeys(pattern for one in configs for pattern in one.nodes))
        raise FailedPrecondition(
            f"node {node!r} does not reach this cluster: its name matches none of `nodes`, {patterns}; add it there if "
            "it does"
        )
    found: dict[str, str] = {}
    for one in reached:
        for key, value in one.topology.items():
            if found.setdefault(key, value) != value:
                raise FailedPrecondition(
                    f"node {node!r} matches `nodes` of pools with different segments, {key}={found[key]} and "
                    f"{key}={value} (pool {one.pool!r}); a node has one value, so give each pool its own `nodes`"
                )
    return found
