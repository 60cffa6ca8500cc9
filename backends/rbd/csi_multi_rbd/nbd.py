"""Images that an rbd-nbd process maps, as /sys/block/nbd*/backend shows them.

The cookie says which image a device was made for; the kernel keeps it when the process dies, and takes a
new process for it. Which process serves a device, only the processes tell: `pid` in sysfs stays the first one's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from csi_multi.host.blockdev import BlockDevices

from .config import Config
from .mapped import Mapped

DISK = re.compile(r"nbd\d+")
COOKIE = "backend"  # the attribute that shows it
PROGRAM = "rbd-nbd"
# A device whose process died waits so many seconds for another, and never gives up a request for being slow.
OPTIONS = ("try-netlink", "reattach-timeout=300", "io-timeout=0")
FIRST_NAMESPACE = 0xEFFFFFFC  # linux/proc_ns.h: inode of the pid namespace that sysfs counts in
EXCLUSIVE, SHARED = "exclusive", "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """What a device was made for."""

    fsid: str
    pool: str
    namespace: str
    image: str
    image_id: str
    mode: str

    @classmethod
    def read(cls, text: str) -> Cookie | None:
        """Return what was written, None for another's cookie."""
        words = text.split("/")
        if len(words) != 6 or words[5] not in (EXCLUSIVE, SHARED):
            return None
        return cls(**dict(zip(("fsid", "pool", "namespace", "image", "image_id", "mode"), words, strict=True)))

    def __str__(self) -> str:
        return "/".join((self.fsid, self.pool, self.namespace, self.image, self.image_id, self.mode))


def cookie(config: Config, image: str, image_id: str, *, exclusive: bool) -> Cookie:
    return Cookie(
        fsid=config.fsid,
        pool=config.pool,
        namespace=config.namespace,
        image=image,
        image_id=image_id,
        mode=EXCLUSIVE if exclusive else SHARED,
    )


def mapped(kernel: BlockDevices, config: Config, image: str = "") -> Iterator[tuple[str, Mapped]]:
    """Yield the mappings of an image of this instance, or of all: the image's name, and how it is mapped."""
    place = (config.fsid, config.pool, config.namespace)
    for disk in kernel.disks():
        text = (kernel.text(disk, COOKIE) or "") if DISK.fullmatch(disk) else ""
        made_for = Cookie.read(text)
        if not made_for or (made_for.fsid, made_for.pool, made_for.namespace) != place:
            continue
        if image in ("", made_for.image) and (number := kernel.text(disk, "dev")):
            yield (
                made_for.image,
                Mapped(
                    kind="nbd",
                    disk=disk,
                    number=number,
                    image_id=made_for.image_id,
                    proof={COOKIE: text},
                    exclusive=made_for.mode == EXCLUSIVE,
                    served=not sees_processes(kernel) or bool(serving(kernel, disk)),  # out of sight is not dead
                ),
            )


def sees_processes(kernel: BlockDevices) -> bool:
    """Whether the processes of the machine are seen here, or only those of a container."""
    try:
        return (kernel.proc / "self" / "ns" / "pid").stat().st_ino == FIRST_NAMESPACE
    except OSError:
        return False


def serving(kernel: BlockDevices, disk: str) -> list[int]:
    """Return the numbers of the processes that serve it."""
    first = kernel.text(disk, "pid")
    node = os.fsencode(kernel.dev / disk)
    return [int(pid) for pid, words in _processes(kernel) if pid == first or node in words]


def _processes(kernel: BlockDevices) -> Iterator[tuple[str, list[bytes]]]:
    """Yield number and words of every rbd-nbd."""
    for entry in kernel.proc.iterdir():
        with suppress(OSError):  # gone meanwhile
            if not entry.name.isdecimal() or (entry / "comm").read_text().strip() != PROGRAM:
                continue
            if words := (entry / "cmdline").read_bytes():  # one that has ended and is not yet buried has none
                yield entry.name, words.split(b"\0")
