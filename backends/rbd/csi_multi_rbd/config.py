"""The schemas of an instance's configuration and of the parameters of a StorageClass and a VolumeSnapshotClass.

Parameters have the names and values of ceph-csi, so that classes written for it work here. Parameters for what the
driver does not do are refused with the reason. Options of mkfs are the core's, the same for every backend.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

import msgspec

from csi_multi.contract import Doc, Keys, Schema

from . import ceph_rules, pool_rules
from .ceph_rules import Feature, Mounter, features_problem, options_problem, split_features, striping_problem
from .pool_rules import OtherPool
from .refused_parameters import PREFIX, UNSUPPORTED

MIB = 2**20
GIB = 2**30

StringMap = dict[str, str]

PATH = r"^(/[^\x00-\x1f\x7f]+)?\Z"
MAP_OPTIONS = r"^[!-~]*\Z"

CLUSTER = Keys("clusterID", "has to be the instance's fsid; leave it out, since `backend` names the cluster")


class Config(Schema, frozen=True, kw_only=True):
    """The configuration of an instance: a pool of one cluster, or one namespace of it, as one user. It may have more
    pools of the cluster, for nodes of other segments.
    """

    monitors: Annotated[
        tuple[str, ...],
        Doc(
            "addresses of the cluster's monitors: host, host:port, v2:IP:port, [v2:IP:port,v1:IP:port]",
            min_length=1,
        ),
    ]
    fsid: Annotated[str, Doc("the cluster's id, a UUID; `ceph fsid` prints it")]
    pool: Annotated[str, Doc("pool of the images")]
    user: Annotated[str, Doc("Ceph user without the prefix `client.`; docs/rbd.md lists the caps it needs")]
    keyring: Annotated[
        str,
        Doc(
            "absolute path of the user's keyring file; only nodes can do without: then each request brings the key, as "
            "userID and userKey of the StorageClass's secrets",
            pattern=PATH,
        ),
    ] = ""
    namespace: Annotated[
        str,
        Doc("namespace in the pool, which must exist; it separates drivers that share a pool"),
    ] = ""
    data_pool: Annotated[
        str,
        Doc(
            "pool of the data if the StorageClass names none, for example an erasure-coded one; default: `pool`",
        ),
    ] = ""
    image_features: Annotated[tuple[Feature, ...], Doc("features of new images if the StorageClass names none")] = (
        "layering",
        "exclusive-lock",
        "object-map",
        "fast-diff",
        "deep-flatten",
    )
    mounter: Annotated[
        Mounter,
        Doc("what maps images if the StorageClass names no mounter: the kernel (rbd) or a process (rbd-nbd)"),
    ] = "rbd"
    map_options: Annotated[
        str, Doc("options of mapping if the StorageClass has none, as krbd:a,b=c;nbd:d", pattern=MAP_OPTIONS)
    ] = ""
    unmap_options: Annotated[
        str, Doc("options of unmapping if the StorageClass has none, as krbd:a;nbd:b", pattern=MAP_OPTIONS)
    ] = ""
    topology: Annotated[
        StringMap,
        Doc("segments of the nodes that reach the cluster, for example {zone: a}; empty: every node reaches it"),
    ] = msgspec.field(default_factory=dict)
    nodes: Annotated[
        tuple[str, ...], Doc("names of the nodes that reach the cluster, with the wildcards * and ?; needs `topology`")
    ] = ("*",)
    pools: Annotated[
        dict[str, OtherPool],
        Doc(
            "more pools for the same classes, by name, each with `topology`, `nodes` and `data_pool` of its own; a new "
            "volume is in the first pool that the nodes of the requested topology reach"
        ),
    ] = msgspec.field(default_factory=dict)
    crush_locations: Annotated[
        StringMap,
        Doc(
            "CRUSH locations of nodes, by name with the wildcards * and ?, for example {node-a*: zone:a|rack:b}; the "
            "kernel of such a node reads from the nearest copy of the data (Linux 5.8, Ceph 15)"
        ),
    ] = msgspec.field(default_factory=dict)
    fencing: Annotated[
        bool,
        Doc(
            "cut off the client of a node that has the taint node.kubernetes.io/out-of-service and is not ready, when "
            "another node stages its volume (Ceph 16; the driver on a node reads Node objects)"
        ),
    ] = False
    conf: Annotated[
        str, Doc("absolute path of a ceph.conf with settings for clients", pattern=r"^/[^\x00-\x1f\x7f]+\Z")
    ] = "/dev/null"
    connect_seconds: Annotated[int, Doc("seconds to wait for the monitors", ge=1, le=300)] = 10
    command_seconds: Annotated[
        int, Doc("time limit in seconds for one command, and for each of its operations on an OSD", ge=5, le=3600)
    ] = 60
    min_size: Annotated[int, Doc("bytes of the smallest volume; xfs needs 300 MiB, btrfs 109 MiB", ge=MIB)] = 16 * MIB
    max_size: Annotated[int, Doc("bytes of the largest volume; 0: no limit", ge=0)] = 0
    default_size: Annotated[int, Doc("bytes of a volume when the request has no size", ge=MIB)] = GIB
    overprovision: Annotated[
        float,
        Doc("a volume that is larger than the free space of its pool times this number is refused", ge=1, le=1000),
    ] = 1.0
    flatten_depth: Annotated[
        int,
        Doc(
            "an image with this many ancestors is flattened in the background: it gets its own copy of the data",
            ge=1,
            le=15,
        ),
    ] = 4
    max_depth: Annotated[
        int,
        Doc(
            "an image with this many ancestors is copied only after it is flattened; kernels map up to 16", ge=1, le=15
        ),
    ] = 8
    flatten_snapshots: Annotated[
        int,
        Doc(
            "with this many snapshots of one image, those in the trash included, its clones are flattened", ge=1, le=500
        ),
    ] = 250
    max_snapshots: Annotated[
        int,
        Doc(
            "with this many snapshots of one image no more are created; kernels map images with up to 510", ge=1, le=500
        ),
    ] = 450

    def __post_init__(self) -> None:
        """Raises ValueError, which is reported with the name of the file."""
        _refuse("monitors", *map(ceph_rules.monitor_problem, self.monitors))
        _refuse("fsid", ceph_rules.fsid_problem(self.fsid))
        _refuse("user", ceph_rules.user_problem(self.user))
        _refuse("pool", ceph_rules.name_problem(self.pool), "" if self.pool else "it is empty; name the pool")
        _refuse("namespace", ceph_rules.name_problem(self.namespace))
        _refuse("data_pool", ceph_rules.name_problem(self.data_pool))
        _refuse("topology", *(ceph_rules.segment_problem(*item) for item in self.topology.items()))
        _refuse("pools", *pool_rules.pools_problems(self.pool, self.pools))
        _refuse("crush_locations", *(ceph_rules.location_problem(*item) for item in self.crush_locations.items()))
        _refuse("image_features", features_problem(self.image_features, self.mounter))
        _refuse("map_options", options_problem(self.map_options))
        _refuse("unmap_options", options_problem(self.unmap_options))
        if self.nodes != ("*",) and not self.topology:
            raise ValueError(
                "'nodes' needs 'topology': without it pods are scheduled to nodes that do not reach the cluster"
            )
        if self.flatten_depth > self.max_depth:
            raise ValueError("'flatten_depth' is above 'max_depth': images would be refused before they are flattened")
        if self.flatten_snapshots > self.max_snapshots:
            raise ValueError(
                "'flatten_snapshots' is above 'max_snapshots': snapshots would be refused before clones are flattened"
            )

    def pool_configs(self) -> tuple[Config, ...]:
        """Return one configuration for each pool, the instance's own first."""
        own = msgspec.structs.replace(self, pools={})
        return own, *(
            msgspec.structs.replace(own, pool=name, topology=one.topology, nodes=one.nodes, data_pool=one.data_pool)
            for name, one in self.pools.items()
        )

    def crush_location(self, node: str) -> str:
        """Return the location of a node by the first name that matches it; "" if none does."""
        found = (location for name, location in self.crush_locations.items() if fnmatchcase(node, name))
        return next(found, "")


class Parameters(Schema, frozen=True, kw_only=True):
    """StorageClass parameters. images.image_layout checks them against the instance."""

    pool: Annotated[
        str, Doc("one of the instance's pools, for volumes in that one only; leave it out if there is one")
    ] = ""
    topology_constrained_pools: Annotated[
        str, Doc("ceph-csi's JSON of pools and segments, which have to be the instance's; for volumes in these only")
    ] = ""
    data_pool: Annotated[str, Doc("pool of the data; default: the instance's `data_pool`")] = ""
    image_features: Annotated[
        str, Doc(f"features, separated by commas, from: {', '.join(Feature.__args__)}; default: the instance's")
    ] = ""
    image_format: Annotated[Literal[2], Doc("no effect: images have format 2")] = 2
    object_size: (
        Annotated[int, Doc("bytes per object, a power of two; default: Ceph's, 4 MiB", ge=4096, le=32 * MIB)] | None
    ) = None
    stripe_unit: (
        Annotated[
            int,
            Doc("bytes written to one object before the next, a power of two; needs stripeCount", ge=512, le=32 * MIB),
        ]
        | None
    ) = None
    stripe_count: Annotated[int, Doc("objects over which data is striped; needs stripeUnit", ge=1, le=2**16)] | None = (
        None
    )
    mounter: Annotated[
        Mounter | None,
        Doc("what maps the image on a node: the kernel (rbd) or a process (rbd-nbd); default: the instance's"),
    ] = None
    try_other_mounters: Annotated[bool, Doc("not supported: true is refused")] = False
    map_options: Annotated[
        str, Doc("options of mapping, as krbd:a,b=c;nbd:d; default: the instance's", pattern=MAP_OPTIONS)
    ] = ""
    unmap_options: Annotated[
        str, Doc("options of unmapping, as krbd:a;nbd:b; default: the instance's", pattern=MAP_OPTIONS)
    ] = ""
    thick_provision: Annotated[bool, Doc("not supported: true is refused")] = False
    cluster: Annotated[StringMap, CLUSTER] = msgspec.field(default_factory=dict)
    logs: Annotated[
        StringMap,
        Keys("cephLogDir|cephLogStrategy", "no effect: no log files are written"),
    ] = msgspec.field(default_factory=dict)
    old_names: Annotated[
        StringMap, Keys("fsType|fstype", "old names of csi.storage.k8s.io/fstype that the provisioner reads")
    ] = msgspec.field(default_factory=dict)
    unsupported: Annotated[StringMap, Keys("|".join(UNSUPPORTED), "refused; the error says what to do instead")] = (
        msgspec.field(default_factory=dict)
    )

    def __post_init__(self) -> None:
        for key in self.unsupported:
            raise ValueError(f"{key!r}: {UNSUPPORTED[key]}")
        _refuse("topologyConstrainedPools", pool_rules.constraint_problem(self.topology_constrained_pools))
        _refuse("dataPool", ceph_rules.name_problem(self.data_pool))
        _refuse("mapOptions", options_problem(self.map_options))
        _refuse("unmapOptions", options_problem(self.unmap_options))
        if self.thick_provision:
            raise ValueError(
                "'thickProvision': images are thin; leave it out, and give the pool enough space for all volumes"
            )
        if self.try_other_mounters:
            raise ValueError(
                "'tryOtherMounters': leave it out, and set 'mounter: rbd-nbd' for images that kernels cannot map"
            )
        striping = {
            "object_size": self.object_size or 0,
            "unit": self.stripe_unit or 0,
            "count": self.stripe_count or 0,
        }
        if reason := striping_problem(**striping):
            raise ValueError(reason)

    @property
    def features(self) -> tuple[str, ...]:
        """The requested features; empty: the instance's."""
        return split_features(self.image_features)


class SnapshotParameters(Schema, frozen=True, kw_only=True):
    """VolumeSnapshotClass parameters."""

    pool: Annotated[str, Doc("has to be the pool of the volume; leave it out")] = ""
    cluster: Annotated[StringMap, CLUSTER] = msgspec.field(default_factory=dict)
    unsupported: Annotated[StringMap, Keys("snapshotNamePrefix", "refused: the driver names its images itself")] = (
        msgspec.field(default_factory=dict)
    )

    def __post_init__(self) -> None:
        for key in self.unsupported:
            raise ValueError(f"{key!r}: {PREFIX}")


class GroupSnapshotParameters(SnapshotParameters, frozen=True, kw_only=True):
    """VolumeGroupSnapshotClass parameters."""

    unsupported: Annotated[StringMap, Keys("volumeGroupNamePrefix", "refused: the driver names its images itself")] = (
        msgspec.field(default_factory=dict)
    )


def _refuse(key: str, *reasons: str) -> None:
    for reason in filter(None, reasons):
        raise ValueError(f"{key!r}: {reason}")
