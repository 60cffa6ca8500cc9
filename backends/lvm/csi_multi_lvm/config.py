"""The schemas of an instance's configuration and of the parameters of a StorageClass and a VolumeSnapshotClass."""

from __future__ import annotations

from typing import Annotated, Literal

from csi_multi.contract import Doc, Schema

GIB = 2**30

Type = Literal["thin", "linear", "striped", "raid1", "raid5", "raid6", "raid10"]
Wipe = Literal["auto", "zero", "none"]


class Config(Schema, frozen=True, kw_only=True):
    """The configuration of an instance: one volume group."""

    volume_group: Annotated[
        str, Doc("volume group that holds the volumes; it must exist", pattern=r"^[A-Za-z0-9_.+][A-Za-z0-9_.+-]{0,62}$")
    ]
    thin_pool: Annotated[
        str,
        Doc(
            "thin pool in the group, for volumes of type thin; it must exist",
            pattern=r"^([A-Za-z0-9_.+][A-Za-z0-9_.+-]{0,62})?$",
        ),
    ] = ""
    type: Annotated[
        Type | None,
        Doc("type of volumes whose StorageClass sets none; default: thin with a thin pool, otherwise linear"),
    ] = None
    tags: Annotated[
        tuple[str, ...], Doc("tags for your own tools, which every logical volume gets in addition to the driver's")
    ] = ()
    reserve_percent: Annotated[
        int,
        Doc("percent of the group that thick volumes leave free, so that pools and snapshots can grow", ge=0, le=90),
    ] = 5
    overprovision: Annotated[
        float,
        Doc(
            "the sizes of all thin volumes and snapshots may add up to this many times the size of the pool",
            ge=1,
            le=1000,
        ),
    ] = 1.0
    pool_full_percent: Annotated[
        int,
        Doc("fullness in percent of the pool's data or metadata from which nothing new is created in it", ge=1, le=100),
    ] = 90
    min_size: Annotated[int, Doc("bytes of the smallest volume; xfs needs 300 MiB, btrfs 109 MiB", ge=512)] = 16 * 2**20
    max_size: Annotated[int, Doc("bytes of the largest volume; 0: no limit", ge=0)] = 0
    default_size: Annotated[int, Doc("bytes of a volume when the request has no size", ge=512)] = GIB
    discard_on_delete: Annotated[
        bool, Doc("discard the space of deleted thick volumes on the disks (issue_discards)")
    ] = False
    namespace: Annotated[
        Literal["own", "host"],
        Doc("where lvm commands run: in the driver's own namespaces, or in the host's by nsenter (needs hostPID)"),
    ] = "own"
    udev: Annotated[
        Literal["auto", "yes", "no"],
        Doc("whether udev creates device nodes; auto: yes where its socket and the host's IPC namespace are visible"),
    ] = "auto"
    command_seconds: Annotated[
        int, Doc("seconds after which an lvm command is killed, which can leave its work incomplete", ge=10)
    ] = 300


class Parameters(Schema, frozen=True, kw_only=True):
    """StorageClass parameters."""

    type: Annotated[Type | None, Doc("how the volume is laid out on the disks; default: the instance's `type`")] = None
    stripes: (
        Annotated[
            int,
            Doc(
                "disks that data is spread over, without those for parity and copies (striped, raid5, raid10; raid6: "
                "at least 3); default: the minimum",
                ge=2,
                le=64,
            ),
        ]
        | None
    ) = None
    stripe_size: (
        Annotated[
            int,
            Doc(
                "bytes per stripe, a power of two from 4096 up to an extent of the group (striped, raid5, raid6, "
                "raid10); default: LVM's, 64 KiB",
                ge=4096,
                le=2**30,
            ),
        ]
        | None
    ) = None
    mirrors: (
        Annotated[int, Doc("copies in addition to the first (raid1: up to 9, raid10: 1); default: 1", ge=1, le=9)]
        | None
    ) = None
    integrity: Annotated[bool, Doc("detect and repair silently corrupted blocks with dm-integrity (RAID types)")] = (
        False
    )
    lvcreate_options: Annotated[
        str, Doc("further options for lvcreate, separated by spaces; only those that docs/lvm.md lists")
    ] = ""
    wipe: Annotated[
        Wipe,
        Doc(
            "what happens to old data in the space of a thick volume; auto: raw block volumes are zeroed before their "
            "first use, a filesystem hides it in others; zero: always zeroed; none: never zeroed, old data can be read"
        ),
    ] = "auto"


class SnapshotParameters(Schema, frozen=True, kw_only=True):
    """VolumeSnapshotClass parameters for snapshots of thick volumes; those of thin volumes ignore them."""

    snapshot_size: Annotated[
        str,
        Doc(
            "space for what changes in the volume: percent of the volume, or bytes; with 100% it cannot overflow",
            pattern=r"^[1-9][0-9]*%?$",
        ),
    ] = "100%"
    auto_extend_threshold: Annotated[
        int, Doc("fullness in percent from which that space is extended; 100: never", ge=50, le=100)
    ] = 70
    auto_extend_percent: Annotated[int, Doc("percent of its size by which it is extended", ge=1, le=100)] = 20
