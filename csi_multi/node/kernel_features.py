"""Keep mkfs from using what the running kernel cannot mount: tools are often newer than kernels."""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path

from ..contract.machine import Host

Kernel = tuple[int, int]

XFS_PROFILES = Path("/usr/share/xfsprogs/mkfs")
# Some xfsprogs ship profiles that their own mkfs refuses: nrext64 stands under [metadata], and is
# an inode option (6.1.0 in Debian 12).
_XFS_MOVED = {"nrext64": "inode"}
_XFS_OPTION = {"metadata": "-m", "inode": "-i"}


def running() -> Kernel:
    return kernel(os.uname().release)


def kernel(release: str) -> Kernel:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def ext4(host: Host, running: Kernel) -> list[str]:
    """Return features for -O. orphan_file came with Linux 5.15 and is a default of e2fsprogs 1.47."""
    if running >= (5, 15):
        return []
    version = re.search(r"mke2fs (\d+)\.(\d+)", host.run("mke2fs", "-V").stderr)
    return ["^orphan_file"] if version and (int(version[1]), int(version[2])) >= (1, 47) else []


def btrfs(host: Host, running: Kernel) -> list[str]:
    """Return features for -O. block-group-tree came with Linux 6.1 and is a default of progs 6.19."""
    if running >= (6, 1):
        return []
    listing = host.run("mkfs.btrfs", "-O", "list-all", ok=(0, 1))
    return ["^block-group-tree"] if "block-group-tree" in listing.stdout + listing.stderr else []


def xfs(running: Kernel, profiles: Path = XFS_PROFILES) -> list[str]:
    """Return mkfs.xfs words for the newest profile the kernel knows; none when it knows them all."""
    found = {kernel(path.stem.removeprefix("lts_")): path for path in profiles.glob("lts_*.conf")}
    if not found or running > max(found):
        return []
    fitting = [version for version in found if version <= running]
    return _words(found[max(fitting) if fitting else min(found)])


def _words(profile: Path) -> list[str]:
    text = configparser.ConfigParser()
    text.read(profile)
    wanted: dict[str, list[str]] = {}
    for section, option in _XFS_OPTION.items():
        for key, value in text[section].items() if text.has_section(section) else ():
            wanted.setdefault(_XFS_OPTION.get(_XFS_MOVED.get(key, ""), option), []).append(f"{key}={value}")
    return [word for option, pairs in wanted.items() for word in (option, ",".join(pairs))]
