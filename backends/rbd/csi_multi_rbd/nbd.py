"""Devices of rbd-nbd: which image a device shows, how it gets a new size, and how its process outlives the driver.

/sys/block/nbd*/backend shows the cookie of a device, which says what it was created for. The kernel keeps it when the
process dies, and requires it of a new process. Only the list of processes shows which one serves a device: `pid` in
sysfs stays that of the first.

A device gets its new size over generic netlink. rbd-nbd should do that itself, but Ceph 16 does it without the cookie,
which the kernel refuses ("must specify backend" in its log): the device would never grow.

An rbd-nbd is moved to a cgroup of its own, so that it goes on after the driver's container (node_processes).
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from csi_multi.contract import Unavailable
from csi_multi.host import node_processes
from csi_multi.host.blockdev import BlockDevices

from .config import Config
from .resources import MappedImage

DISK = re.compile(r"nbd\d+")
COOKIE = "backend"  # the attribute that shows it
PROGRAM = "rbd-nbd"
# A device whose process died waits this many seconds for a new one; a slow request never fails.
OPTIONS = ("try-netlink", "reattach-timeout=300", "io-timeout=0")
EXCLUSIVE, SHARED = "exclusive", "shared"

CGROUP = "csi-multi-rbd-nbd"

NETLINK_GENERIC = 16  # linux/netlink.h
REQUEST, ACKNOWLEDGE = 0x1, 0x4
ERROR = 2  # type of a message that carries an errno, 0 for success
CONTROL = 16  # linux/genetlink.h: the family that resolves the numbers of the others
GET_FAMILY = 3
FAMILY_ID, FAMILY_NAME = 1, 2
RECONFIGURE = 3  # linux/nbd-netlink.h
INDEX, SIZE_BYTES, BACKEND_IDENTIFIER = 1, 2, 10
NETLINK_TIMEOUT = 10.0  # seconds

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_GENERIC = struct.Struct("=BBH")  # command, version, nothing
_ATTRIBUTE = struct.Struct("=HH")  # length, type


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """What a device was created for."""

    fsid: str
    pool: str
    namespace: str
    image: str
    image_id: str
    mode: str

    @classmethod
    def read(cls, text: str) -> Cookie | None:
        """Return the parsed cookie, None for one of another program."""
        parts = text.split("/")
        if len(parts) != 6 or parts[5] not in (EXCLUSIVE, SHARED):
            return None
        return cls(**dict(zip(("fsid", "pool", "namespace", "image", "image_id", "mode"), parts, strict=True)))

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


def find(kernel: BlockDevices, config: Config, image: str = "") -> Iterator[tuple[str, MappedImage]]:
    """Yield the mappings of an image of this instance, or of all its images, each with the image's name."""
    place = (config.fsid, config.pool, config.namespace)
    for disk in kernel.disks():
        text = (kernel.text(disk, COOKIE) or "") if DISK.fullmatch(disk) else ""
        created_for = Cookie.read(text)
        if not created_for or (created_for.fsid, created_for.pool, created_for.namespace) != place:
            continue
        if image in ("", created_for.image) and (number := kernel.text(disk, "dev")):
            yield (
                created_for.image,
                MappedImage(
                    kind="nbd",
                    disk=disk,
                    number=number,
                    image_id=created_for.image_id,
                    proof={COOKIE: text},
                    exclusive=created_for.mode == EXCLUSIVE,
                    # a process that cannot be seen may be alive
                    served=not sees_processes(kernel) or bool(processes(kernel, disk)),
                ),
            )


def processes(kernel: BlockDevices, disk: str) -> list[int]:
    """Return the process ids of the rbd-nbd processes that serve a device."""
    first = kernel.text(disk, "pid")
    node = os.fsencode(kernel.dev / disk)
    return [pid for pid, words in node_processes.running(PROGRAM, kernel.proc) if str(pid) == first or node in words]


def move_to_cgroup(kernel: BlockDevices, pids: list[int]) -> None:
    """Let rbd-nbd processes go on after the driver's container. Raises OSError as node_processes.move_to_cgroup."""
    node_processes.move_to_cgroup(CGROUP, pids, kernel.proc)


def sees_processes(kernel: BlockDevices) -> bool:
    return node_processes.all_visible(kernel.proc)


def resize(number: int, cookie: str, size: int) -> None:
    """Set the size of /dev/nbd<number>, which must have this cookie. Raises Unavailable."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as connection:
            connection.settimeout(NETLINK_TIMEOUT)
            connection.bind((0, 0))
            payload = _request(connection, CONTROL, GET_FAMILY, _attribute(FAMILY_NAME, b"nbd\0"))
            (family,) = struct.unpack("=H", dict(_attributes(payload))[FAMILY_ID])
            _request(
                connection,
                family,
                RECONFIGURE,
                _attribute(INDEX, struct.pack("=I", number)),
                _attribute(SIZE_BYTES, struct.pack("=Q", size)),
                _attribute(BACKEND_IDENTIFIER, cookie.encode() + b"\0"),
            )
    except (OSError, LookupError, struct.error) as error:
        raise Unavailable(f"/dev/nbd{number} cannot be resized: {error}; the kernel log says why") from None


def _request(connection: socket.socket, family: int, command: int, *attributes: bytes) -> bytes:
    """Send one request; return the attributes of the answer. Raises OSError."""
    body = _GENERIC.pack(command, 1, 0) + b"".join(attributes)
    connection.send(_HEADER.pack(_HEADER.size + len(body), family, REQUEST | ACKNOWLEDGE, 1, 0) + body)
    answer = b""
    while True:  # an answer, if there is one, and then the status
        for kind, payload in _messages(connection.recv(65536)):
            if kind != ERROR:
                answer = payload[_GENERIC.size :]
                continue
            (status,) = struct.unpack_from("=i", payload)
            if status:
                raise OSError(-status, os.strerror(-status))
            return answer


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        length, kind, *_ = _HEADER.unpack_from(data)
        yield kind, data[_HEADER.size : length]
        data = data[_aligned(length) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(_aligned(length) - length)


def _aligned(length: int) -> int:
    return -(-length // 4) * 4
