"""Keeps mkfs from using features that the running kernel cannot mount: tools are often newer than kernels."""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path

from ..contract.machine import Host

KernelVersion = tuple[int, int]

XFS_PROFILES = Path("/usr/share/xfsprogs/mkfs")
# Some xfsprogs ship profiles that their own mkfs refuses: nrext64 is listed under [metadata], but is an inode option
# (6.1.0 in Debian 12).
_XFS_MOVED = {"nrext64": "inode"}
_XFS_OPTION = {"metadata": "-m", "inode": "-i"}


def running_kernel() -> KernelVersion:
    return parse_release(os.uname().release)


def parse_release(release: str) -> KernelVersion:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def ext4_features(host: Host, kernel: KernelVersion) -> list[str]:
    """Return features for -O. orphan_file came with Linux 5.15 and is a default of e2fsprogs 1.47."""
    if kernel >= (5, 15):
        return []
    version = re.search(r"mke2fs (\d+)\.(\d+)", host.run("mke2fs", "-V").stderr)
    return ["^orphan_file"] if version and (int(version[1]), int(version[2])) >= (1, 47) else []


def btrfs_features(host: Host, kernel: KernelVersion) -> list[str]:
    """Return features for -O. block-group-tree came with Linux 6.1 and is a default of progs 6.19."""
    if kernel >= (6, 1):
        return []
    listing = host.run("mkfs.btrfs", "-O", "list-all", ok=(0, 1))
    return ["^block-group-tree"] if "block-group-tree" in listing.stdout + listing.stderr else []


def xfs_arguments(kernel: KernelVersion, profiles: Path = XFS_PROFILES) -> list[str]:
    """Return arguments of mkfs.xfs for the newest profile the kernel supports; none when it supports all of them."""
    found = {parse_release(path.stem.removeprefix("lts_")): path for path in profiles.glob("lts_*.conf")}
    if not found or kernel > max(found):
        return []
    supported = [version for version in found if version <= kernel]
    return _profile_arguments(found[max(supported) if supported else min(found)])


def _profile_arguments(profile: Path) -> list[str]:
    parser = configparser.ConfigParser()
    parser.read(profile)
    by_option: dict[str, list[str]] = {}
    for section, option in _XFS_OPTION.items():
        for key, value in parser[section].items() if parser.has_section(section) else ():
            by_option.setdefault(_XFS_OPTION.get(_XFS_MOVED.get(key, ""), option), []).append(f"{key}={value}")
    return [word for option, pairs in by_option.items() for word in (option, ",".join(pairs))]
