"""Tell the kernel the size of an nbd device, over generic netlink.

rbd-nbd should do that itself. Ceph 16 does it without the device's cookie, which the kernel refuses ("must specify
backend" in its log): a device that knows what it was made for would never grow.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

from csi_multi.contract import Unavailable

NETLINK_GENERIC = 16  # linux/netlink.h
REQUEST, ACKNOWLEDGE = 0x1, 0x4
ERROR = 2  # type of a message that carries an errno, 0 when all is well
CONTROL = 16  # linux/genetlink.h: the family that knows the numbers of the others
GET_FAMILY = 3
FAMILY_ID, FAMILY_NAME = 1, 2
RECONFIGURE = 3  # linux/nbd-netlink.h
INDEX, SIZE_BYTES, BACKEND_IDENTIFIER = 1, 2, 10
LIMIT = 10.0  # seconds

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_GENERIC = struct.Struct("=BBH")  # command, version, nothing
_ATTRIBUTE = struct.Struct("=HH")  # length, type


def resize(number: int, cookie: str, size: int) -> None:
    """Set the size of /dev/nbd<number>, if it has this cookie. Raises Unavailable."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as door:
            door.settimeout(LIMIT)
            door.bind((0, 0))
            told = _ask(door, CONTROL, GET_FAMILY, _attribute(FAMILY_NAME, b"nbd\0"))
            (family,) = struct.unpack("=H", dict(_attributes(told))[FAMILY_ID])
            _ask(
                door,
                family,
                RECONFIGURE,
                _attribute(INDEX, struct.pack("=I", number)),
                _attribute(SIZE_BYTES, struct.pack("=Q", size)),
                _attribute(BACKEND_IDENTIFIER, cookie.encode() + b"\0"),
            )
    except (OSError, LookupError, struct.error) as error:
        raise Unavailable(f"/dev/nbd{number} cannot be resized: {error}; see the kernel log") from None


def _ask(door: socket.socket, family: int, command: int, *attributes: bytes) -> bytes:
    """Send one request; return the attributes of the answer. Raises OSError."""
    body = _GENERIC.pack(command, 1, 0) + b"".join(attributes)
    door.send(_HEADER.pack(_HEADER.size + len(body), family, REQUEST | ACKNOWLEDGE, 1, 0) + body)
    answer = b""
    while True:  # the answer, if there is one, and then how it went
        for kind, told in _messages(door.recv(65536)):
            if kind != ERROR:
                answer = told[_GENERIC.size :]
                continue
            (status,) = struct.unpack_from("=i", told)
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
