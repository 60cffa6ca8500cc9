"""The schemas of an instance's configuration and of the parameters of a StorageClass."""

from __future__ import annotations

from typing import Annotated, Literal

from csi_multi.contract import Doc, Schema

MIB = 2**20
GIB = 2**30


class Config(Schema, frozen=True, kw_only=True):
    """The configuration of an instance: one directory."""

    directory: Annotated[
        str, Doc("absolute path of the directory for images and snapshots; created on first use", pattern=r"^/.*[^/]$")
    ]
    require_mount: Annotated[
        bool, Doc("refuse to work unless `directory` is itself a mount point, so that a missing disk is noticed")
    ] = False
    reserve_percent: Annotated[int, Doc("percent of the filesystem kept free", ge=0, le=90)] = 5
    reserve_bytes: Annotated[int, Doc("bytes that stay free; this or `reserve_percent`, whichever is more", ge=0)] = 0
    overprovision: Annotated[
        float,
        Doc(
            "the sizes of all volumes may add up to this many times the space for them; 1: every volume can be filled",
            ge=1,
            le=1000,
        ),
    ] = 1.0
    min_size: Annotated[int, Doc("bytes of the smallest volume; xfs needs 300 MiB, btrfs 109 MiB", ge=4096)] = 16 * MIB
    max_size: Annotated[int, Doc("bytes of the largest volume; 0: no limit", ge=0)] = 0
    default_size: Annotated[int, Doc("bytes of a volume when the request has no size", ge=4096)] = GIB


class Parameters(Schema, frozen=True, kw_only=True):
    """StorageClass parameters."""

    sector_size: Annotated[
        Literal[512, 4096] | None,
        Doc("bytes per sector of the device; default: the source's, else what direct I/O or `blockSize` needs"),
    ] = None
