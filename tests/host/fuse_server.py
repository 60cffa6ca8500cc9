"""A filesystem with one file, `image`, whose server a test can stop.

Run it with: unshare --mount python fuse_server.py TARGET SIZE

It speaks the kernel's protocol (linux/fuse.h, version 7.31) and keeps the file in memory. Stopped (SIGSTOP), every
question to it hangs; after SIGUSR1, each is answered with EIO until the next SIGUSR1. It ends with its parent.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
from collections.abc import Callable

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE = 1, 2, 3, 4, 14, 15, 16, 17, 18
FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET = 20, 25, 26, 27, 28, 29, 34, 36, 42
NO_REPLY = (FORGET, INTERRUPT, BATCH_FORGET)
ROOT, FILE = 1, 2
NAME = b"image"
PR_SET_PDEATHSIG = 1
BUFFER = 1 << 20


class Server:
    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.failing = False
        self.replies: dict[int, Callable[[int, bytes], bytes]] = {
            INIT: self.init,
            LOOKUP: self.lookup,
            GETATTR: lambda node, _: struct.pack("=QII", 0, 0, 0) + self.attributes(node),
            SETATTR: lambda node, _: struct.pack("=QII", 0, 0, 0) + self.attributes(node),
            OPEN: lambda *_: struct.pack("=QII", 1, 0, 0),
            OPENDIR: lambda *_: struct.pack("=QII", 1, 0, 0),
            READDIR: lambda *_: b"",
            READ: self.read,
            WRITE: self.write,
            STATFS: lambda *_: struct.pack("=QQQQQIIII24x", 1 << 20, 1 << 20, 1 << 20, 9, 9, 4096, 255, 4096, 0),
        } | dict.fromkeys((RELEASE, RELEASEDIR, FSYNC, FLUSH, ACCESS), lambda *_: b"")

    def init(self, node: int, body: bytes) -> bytes:
        return struct.pack("=IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 16, 12, 1 << 16, 1, 16, 0, 0)

    def lookup(self, node: int, body: bytes) -> bytes:
        if body.rstrip(b"\0") != NAME:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        return struct.pack("=QQQQII", FILE, 0, 0, 0, 0, 0) + self.attributes(FILE)

    def attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o600
        size = 0 if node == ROOT else len(self.data)
        return struct.pack("=6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def read(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", body)
        return bytes(self.data[offset : offset + size])

    def write(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", body)
        self.data[offset : offset + size] = body[40 : 40 + size]
        return struct.pack("=II", size, 0)

    def answer(self, request: bytes) -> bytes | None:
        _, opcode, unique, node = struct.unpack_from("=IIQQ", request)
        if opcode in NO_REPLY:
            return None
        error, reply = 0, b""
        try:
            if self.failing and opcode != INIT:
                raise OSError(errno.EIO, "made to fail")
            if opcode not in self.replies:
                raise OSError(errno.ENOSYS, "not implemented")
            reply = self.replies[opcode](node, request[40:])
        except OSError as failed:
            error = failed.errno or errno.EIO
        return struct.pack("=IiQ", 16 + len(reply), -error, unique) + reply


def main(target: str, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    server = Server(size)

    def toggle(*_: object) -> None:
        server.failing = not server.failing

    signal.signal(signal.SIGUSR1, toggle)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"test", os.fsencode(target), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount", target)
    print("ready", flush=True)
    while True:
        try:
            request = os.read(device, BUFFER + 4096)
            if (reply := server.answer(request)) is not None:
                os.write(device, reply)
        except FileNotFoundError:
            continue  # the question was withdrawn
        except OSError as error:
            if error.errno == errno.ENODEV:
                return  # unmounted
            raise


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
