"""What an operator, a StorageClass and a VolumeSnapshotClass may say.

Class parameters have the names and values that ceph-csi gave them, so that classes written for it work
here. Those that would promise what is not done are refused with the reason. Options of mkfs are the
core's, the same for every backend.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from csi_multi.contract import Doc, Keys, Schema

from . import options, spelling
from .features import Feature, Mounter, misfit, objection, split

MIB = 2**20
GIB = 2**30

Texts = dict[str, str]

PATH = r"^(/[^\x00-\x1f\x7f]+)?\Z"
MAP_OPTIONS = r"^[!-~]*\Z"

PREFIX = "the driver names its images itself, so that a repeated request finds what the first one made; leave it out"
ENCRYPTION = (
    "the driver does not encrypt volumes; leave it out, let Ceph encrypt its disks (dmcrypt), and the network with "
    "mapOptions: krbd:ms_mode=secure"
)
UNSUPPORTED = {
    "volumeNamePrefix": PREFIX,
    "mkfsOptions": "options of mkfs have names of their own here, blockSize, inodeSize and others (docs/parameters.md)",
    "topologyConstrainedPools": "an instance is one pool; configure one with its 'topology' for each pool",
    "encryptionKMSID": ENCRYPTION,
    "encryptionType": ENCRYPTION,
}
CLUSTER = Keys("clusterID", "has to be the instance's fsid; better left out, since `backend` names the cluster")


class Config(Schema, frozen=True, kw_only=True):
    """An instance's part of the YAML file: one pool, or one namespace of it, of one cluster, as one user."""

    monitors: Annotated[
        tuple[str, ...],
        Doc(
            "addresses of the cluster's monitors: host, host:port, v2:IP:port, [v2:IP:port,v1:IP:port]",
            min_length=1,
        ),
    ]
    fsid: Annotated[str, Doc("the cluster's id, a UUID; `ceph fsid` shows it")]
    pool: Annotated[str, Doc("pool of the images")]
    user: Annotated[str, Doc("Ceph user, without `client.`; docs/rbd.md has the caps it needs")]
    keyring: Annotated[
        str,
        Doc(
            "absolute path of the user's keyring file; only nodes do without: their key comes with each request, as "
            "userID and userKey of the StorageClass's secrets",
            pattern=PATH,
        ),
    ] = ""
    namespace: Annotated[
        str,
        Doc("namespace in the pool; it must exist. Drivers that share a pool are apart by it"),
    ] = ""
    data_pool: Annotated[
        str,
        Doc(
            "pool of the data when the StorageClass names none, for example an erasure-coded one; default: `pool`",
        ),
    ] = ""
    image_features: Annotated[tuple[Feature, ...], Doc("features of images whose StorageClass names none")] = (
        "layering",
        "exclusive-lock",
        "object-map",
        "fast-diff",
        "deep-flatten",
    )
    mounter: Annotated[
        Mounter,
        Doc("how images are mapped whose StorageClass does not say: by the kernel (rbd) or a process (rbd-nbd)"),
    ] = "rbd"
    map_options: Annotated[
        str, Doc("options of mapping when the StorageClass has none, as krbd:a,b=c;nbd:d", pattern=MAP_OPTIONS)
    ] = ""
    unmap_options: Annotated[
        str, Doc("options of unmapping when the StorageClass has none, as krbd:a;nbd:b", pattern=MAP_OPTIONS)
    ] = ""
    topology: Annotated[
        Texts, Doc("segments of the nodes that reach the cluster, for example {zone: a}; none: every node reaches it")
    ] = msgspec.field(default_factory=dict)
    nodes: Annotated[
        tuple[str, ...], Doc("names of the nodes that reach the cluster, with * and ? as in a shell; with `topology`")
    ] = ("*",)
    conf: Annotated[
        str, Doc("absolute path of a ceph.conf with settings for clients", pattern=r"^/[^\x00-\x1f\x7f]+\Z")
    ] = "/dev/null"
    connect_seconds: Annotated[int, Doc("seconds to wait for the monitors", ge=1, le=300)] = 10
    command_seconds: Annotated[
        int, Doc("seconds that one command may take, and one operation of it on an OSD", ge=5, le=3600)
    ] = 60
    min_size: Annotated[int, Doc("bytes of the smallest volume; xfs needs 300 MiB, btrfs 109 MiB", ge=MIB)] = 16 * MIB
    max_size: Annotated[int, Doc("bytes of the largest volume; 0: no limit", ge=0)] = 0
    default_size: Annotated[int, Doc("bytes of a volume when none are asked for", ge=MIB)] = GIB
    overprovision: Annotated[
        float, Doc("bytes that a new volume may have per byte of room that is left in its pool", ge=1)
    ] = 1.0
    flatten_depth: Annotated[
        int,
        Doc("an image with so many ancestors is flattened in the background: it gets its own copy of all", ge=1, le=15),
    ] = 4
    max_depth: Annotated[
        int,
        Doc("an image with so many ancestors is not copied before it is flattened; kernels map up to 16", ge=1, le=15),
    ] = 8
    flatten_snapshots: Annotated[
        int,
        Doc("snapshots of one image, those in the trash included, from which copies of it are flattened", ge=1, le=500),
    ] = 250
    max_snapshots: Annotated[
        int, Doc("snapshots of one image from which no more are made; kernels map images with up to 510", ge=1, le=500)
    ] = 450

    def __post_init__(self) -> None:
        """Raises ValueError, which the reader of the file reports with the file's name."""
        _refuse("monitors", *map(spelling.monitor, self.monitors))
        _refuse("fsid", spelling.fsid(self.fsid))
        _refuse("user", spelling.user(self.user))
        _refuse("pool", spelling.place(self.pool), "" if self.pool else "it has a name")
        _refuse("namespace", spelling.place(self.namespace))
        _refuse("data_pool", spelling.place(self.data_pool))
        _refuse("topology", *(spelling.segment(*item) for item in self.topology.items()))
        _refuse("image_features", objection(self.image_features, self.mounter))
        _refuse("map_options", options.objection(self.map_options))
        _refuse("unmap_options", options.objection(self.unmap_options))
        if self.nodes != ("*",) and not self.topology:
            raise ValueError("'nodes' needs 'topology': else pods are placed where the cluster cannot be reached")
        if self.flatten_depth > self.max_depth:
            raise ValueError("'flatten_depth' is above 'max_depth': nothing would be flattened before it is refused")
        if self.flatten_snapshots > self.max_snapshots:
            raise ValueError("'flatten_snapshots' is above 'max_snapshots': nothing would be flattened in time")


class Parameters(Schema, frozen=True, kw_only=True):
    """StorageClass parameters. Whether they suit the instance, layout.py tells."""

    pool: Annotated[str, Doc("has to be the instance's pool; better left out, since `backend` names it")] = ""
    data_pool: Annotated[str, Doc("pool of the data; default: the instance's `data_pool`")] = ""
    image_features: Annotated[
        str, Doc(f"features, separated by commas, of: {', '.join(Feature.__args__)}; default: the instance's")
    ] = ""
    image_format: Annotated[Literal[2], Doc("has no effect: images are of format 2")] = 2
    object_size: (
        Annotated[int, Doc("bytes per object, a power of two; default: Ceph's, 4 MiB", ge=4096, le=32 * MIB)] | None
    ) = None
    stripe_unit: (
        Annotated[
            int,
            Doc(
                "bytes on one object before the next one's turn, a power of two; with stripeCount", ge=512, le=32 * MIB
            ),
        ]
        | None
    ) = None
    stripe_count: (
        Annotated[int, Doc("objects that data is spread over in turns; with stripeUnit", ge=1, le=2**16)] | None
    ) = None
    mounter: Annotated[
        Mounter | None,
        Doc("who maps the image on a node: the kernel (rbd) or a process (rbd-nbd); default: the instance's"),
    ] = None
    try_other_mounters: Annotated[bool, Doc("not supported: true is refused")] = False
    map_options: Annotated[
        str, Doc("options of mapping, as krbd:a,b=c;nbd:d; default: the instance's", pattern=MAP_OPTIONS)
    ] = ""
    unmap_options: Annotated[
        str, Doc("options of unmapping, as krbd:a;nbd:b; default: the instance's", pattern=MAP_OPTIONS)
    ] = ""
    encrypted: Annotated[bool, Doc("not supported: true is refused")] = False
    thick_provision: Annotated[bool, Doc("not supported: true is refused")] = False
    cluster: Annotated[Texts, CLUSTER] = msgspec.field(default_factory=dict)
    logs: Annotated[
        Texts,
        Keys("cephLogDir|cephLogStrategy", "have no effect: no log files are written"),
    ] = msgspec.field(default_factory=dict)
    old_names: Annotated[
        Texts, Keys("fsType|fstype", "old names of csi.storage.k8s.io/fstype that the provisioner reads")
    ] = msgspec.field(default_factory=dict)
    unsupported: Annotated[Texts, Keys("|".join(UNSUPPORTED), "refused, with what to do instead")] = msgspec.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        for key in self.unsupported:
            raise ValueError(f"{key!r}: {UNSUPPORTED[key]}")
        _refuse("dataPool", spelling.place(self.data_pool))
        _refuse("mapOptions", options.objection(self.map_options))
        _refuse("unmapOptions", options.objection(self.unmap_options))
        if self.encrypted:
            raise ValueError(f"'encrypted': {ENCRYPTION}")
        if self.thick_provision:
            raise ValueError(
                "'thickProvision': images are thin; leave it out, and give the pool room for what was promised"
            )
        if self.try_other_mounters:
            raise ValueError("'tryOtherMounters': leave it out; what a kernel cannot map, 'mounter: rbd-nbd' can")
        striping = {
            "object_size": self.object_size or 0,
            "unit": self.stripe_unit or 0,
            "count": self.stripe_count or 0,
        }
        if reason := misfit(**striping):
            raise ValueError(reason)

    @property
    def features(self) -> tuple[str, ...]:
        """The features that are asked for; none: the instance's."""
        return split(self.image_features)


class SnapshotParameters(Schema, frozen=True, kw_only=True):
    """VolumeSnapshotClass parameters."""

    pool: Annotated[str, Doc("has to be the instance's pool: snapshots lie beside their volumes; better left out")] = ""
    cluster: Annotated[Texts, CLUSTER] = msgspec.field(default_factory=dict)
    unsupported: Annotated[Texts, Keys("snapshotNamePrefix", "refused: the driver names its images itself")] = (
        msgspec.field(default_factory=dict)
    )

    def __post_init__(self) -> None:
        for key in self.unsupported:
            raise ValueError(f"{key!r}: {PREFIX}")


def _refuse(key: str, *reasons: str) -> None:
    for reason in filter(None, reasons):
        raise ValueError(f"{key!r}: {reason}")
