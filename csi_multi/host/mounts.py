"""The mount table of the kernel, which is the only record of what is mounted where."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import sysfs

MOUNTINFO = Path("/proc/self/mountinfo")
DEVICE_NODE_FILESYSTEMS = ("devtmpfs", "tmpfs")  # of /dev, on a machine and in a container
_ODD = re.compile(rb"[ \t\n\\#]")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_READ = 4096  # bytes: what the kernel gives at once
_PARSED = 4096  # lines that are kept parsed: most are the same at every look


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPoint:
    """One line of mountinfo. `root` is the part of the filesystem that is mounted at `target` ("/": all of it)."""

    id: int
    parent: int  # id of the mount that it is mounted on
    number: str  # "major:minor" of the filesystem
    root: str
    target: str
    options: frozenset[str]  # of this mount point
    fs_type: str
    source: str
    super_options: frozenset[str]  # of the filesystem

    @property
    def read_only(self) -> bool:
        return "ro" in self.options

    @property
    def binds_node(self) -> bool:
        """Whether this may be a single device node, bound on a file, and not a filesystem."""
        return self.fs_type in DEVICE_NODE_FILESYSTEMS and self.root != "/"


def table() -> list[MountPoint]:
    """Return all mounts, in mount order: where several share a target, the last one is on top."""
    return [_parsed(line) for line in _lines()]


def at(path: Path, mounts: list[MountPoint] | None = None) -> MountPoint | None:
    """Return the topmost mount whose target is exactly this path."""
    found = all_at(path) if mounts is None else among(mounts, path)
    return found[-1] if found else None


def all_at(*paths: Path) -> list[MountPoint]:
    """Return all mounts whose target is exactly one of these paths; of each path the topmost last."""
    targets = [os.fsencode(path) for path in paths]
    plain = not any(_ODD.search(target) for target in targets)  # otherwise the kernel writes it with escapes
    wanted = {str(path) for path in paths}
    lines = [line for line in _lines() if not plain or any(target in line for target in targets)]
    return [mount for line in lines if (mount := _parsed(line)).target in wanted]


def among(seen: Iterable[MountPoint], path: Path) -> list[MountPoint]:
    """Return those of the mounts whose target is exactly this path, the topmost last."""
    target = str(path)
    return [mount for mount in seen if mount.target == target]


def _lines() -> list[bytes]:
    """Return the lines as they are now."""
    descriptor = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [*iter(lambda: os.read(descriptor, _READ), b"")]
    finally:
        os.close(descriptor)
    # Split bytes at "\n" only: a path may contain other line ends of Python, or invalid UTF-8.
    return [line for line in b"".join(parts).split(b"\n") if line]


@functools.lru_cache(_PARSED)
def _parsed(line: bytes) -> MountPoint:
    return parse(os.fsdecode(line))


def filesystem_number(mount: MountPoint) -> str:
    """Return the number of the device that a filesystem is on, "" when it is not known any more."""
    # btrfs has numbers of its own in the mount table; its source is the device that is really used.
    if mount.fs_type != "btrfs":
        return mount.number
    return sysfs.find_number(mount.source, follow=mount.source.startswith("/dev/"))


def place(mount: MountPoint, by_id: Mapping[int, MountPoint]) -> tuple[str, str]:
    """Return where a mount is: the filesystem and the path in it. All copies of a mount have the same place."""
    parent = by_id.get(mount.parent)
    if parent is None:
        return "", mount.target
    below = mount.target.removeprefix(parent.target.rstrip("/"))
    return parent.number, parent.root.rstrip("/") + below


def is_node_bound(number: str) -> bool:
    """Whether a node of this block device ("": of none) is bound anywhere, which the kernel does not count as use."""
    return bool(number) and any(entry.binds_node and sysfs.find_number(entry.target) == number for entry in table())


def id_of(descriptor: int) -> int:
    """Return the id of the mount through which a descriptor was opened (proc(5), fdinfo)."""
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    return int(text.partition("mnt_id:")[2].split()[0])


def parse(line: str) -> MountPoint:
    """Parse one line (proc(5)): a variable number of optional fields ends with a lone dash."""
    left, _, right = line.partition(" - ")
    own, parent, number, root, target, options, *_ = left.split(" ")
    fs_type, source, super_options = right.split(" ")
    return MountPoint(
        id=int(own),
        parent=int(parent),
        number=number,
        root=_plain(root),
        target=_plain(target),
        options=frozenset(options.split(",")),
        fs_type=fs_type,
        source=_plain(source),
        super_options=frozenset(super_options.split(",")),
    )


def escape(text: str) -> str:
    """Return a path or option string as a field of an fstab line."""
    return re.sub(r"[ \t\n\r\\#]", lambda match: f"\\{ord(match[0]):03o}", text)


def _plain(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
