"""What an operator, a StorageClass and a VolumeSnapshotClass may say."""

from __future__ import annotations

from typing import Annotated, Literal

from csi_multi.contract import Doc, Schema

GIB = 2**30

Type = Literal["thin", "linear", "striped", "raid1", "raid5", "raid6", "raid10"]
Wipe = Literal["auto", "zero", "none"]


class Config(Schema, frozen=True, kw_only=True):
    """An instance's part of the YAML file."""

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
        Type | None, Doc("type of volumes whose StorageClass names none; default: thin with a thin pool, else linear")
    ] = None
    tags: Annotated[
        tuple[str, ...], Doc("tags that every logical volume gets beside the driver's own, for your own tools")
    ] = ()
    reserve_percent: Annotated[
        int, Doc("percent of the group that thick volumes leave free, for pools and snapshots to grow", ge=0, le=90)
    ] = 5
    overprovision: Annotated[
        float, Doc("how many bytes of thin volumes and snapshots may be promised per byte of pool", ge=1)
    ] = 1.0
    pool_full_percent: Annotated[
        int, Doc("fullness of the pool's data or metadata from which nothing new is made in it", ge=1, le=100)
    ] = 90
    min_size: Annotated[int, Doc("bytes of the smallest volume; xfs needs 300 MiB, btrfs 109 MiB", ge=512)] = 16 * 2**20
    max_size: Annotated[int, Doc("bytes of the largest volume; 0: no limit", ge=0)] = 0
    default_size: Annotated[int, Doc("bytes of a volume when none are asked for", ge=512)] = GIB
    discard_on_delete: Annotated[
        bool, Doc("tell the disks about the space of deleted thick volumes (issue_discards)")
    ] = False
    namespace: Annotated[
        Literal["own", "host"],
        Doc("where lvm commands run: in the driver's own namespaces, or in the host's by nsenter (needs hostPID)"),
    ] = "own"
    udev: Annotated[
        Literal["auto", "yes", "no"],
        Doc("whether udev makes device nodes; auto: yes where its socket and the host's IPC namespace are seen"),
    ] = "auto"
    command_seconds: Annotated[
        int, Doc("seconds that one lvm command may take before it is killed, which can leave work half done", ge=10)
    ] = 300


class Parameters(Schema, frozen=True, kw_only=True):
    """StorageClass parameters."""

    type: Annotated[Type | None, Doc("how a volume lies on the disks; default: the instance's `type`")] = None
    stripes: (
        Annotated[
            int,
            Doc(
                "disks that data is spread over, parity and copies not counted (striped, raid5, raid10; raid6: at "
                "least 3); default: the least",
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
                "bytes per stripe, a power of two from 4096 to an extent of the group (striped, raid5, raid6, raid10); "
                "default: LVM's own, 64 KiB",
                ge=4096,
                le=2**30,
            ),
        ]
        | None
    ) = None
    mirrors: (
        Annotated[int, Doc("copies beside the first (raid1: up to 9, raid10: 1); default: 1", ge=1, le=9)] | None
    ) = None
    integrity: Annotated[bool, Doc("find and repair silently changed blocks with dm-integrity (RAID types)")] = False
    lvcreate_options: Annotated[
        str, Doc("further options for lvcreate, separated by blanks; only those that docs/lvm.md lists")
    ] = ""
    wipe: Annotated[
        Wipe,
        Doc(
            "what happens to old data in the space of a thick volume; auto: raw block volumes are zeroed before their "
            "first use, others are formatted over it; zero: always zeroed; none: never, old data can be read"
        ),
    ] = "auto"


class SnapshotParameters(Schema, frozen=True, kw_only=True):
    """VolumeSnapshotClass parameters, for snapshots of thick volumes: thin ones need no space set aside."""

    snapshot_size: Annotated[
        str,
        Doc(
            "space for what changes in the volume: percent of it, or bytes; 100%: it can never overflow",
            pattern=r"^[1-9][0-9]*%?$",
        ),
    ] = "100%"
    auto_extend_threshold: Annotated[
        int, Doc("percent of that space in use from which it is extended; 100: never", ge=50, le=100)
    ] = 70
    auto_extend_percent: Annotated[int, Doc("percent of its size that it is extended by", ge=1, le=100)] = 20
