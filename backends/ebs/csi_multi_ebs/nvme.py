"""What an NVMe controller itself says about a namespace: the Identify command of the NVMe base specification."""

from __future__ import annotations

import ctypes
import fcntl
import struct

ADMIN_COMMAND = 0xC0484E41  # NVME_IOCTL_ADMIN_CMD of linux/nvme_ioctl.h
COMMAND = struct.Struct("=BBHIIIQQIIIIIIIIII")  # struct nvme_passthru_cmd
IDENTIFY = 0x06
NAMESPACE = 0  # cdw10: which structure to return
DATA = 4096  # bytes of every Identify structure
FORMAT_IN_USE = 26  # byte: the low four bits are an index into the formats
FORMATS = 128  # byte: four bytes each, the third of them is log2 of the block size


def size(descriptor: int, namespace: int) -> int:
    """Return a namespace's size in bytes, through an open node of its disk. Raises OSError."""
    data = ctypes.create_string_buffer(DATA)
    address = ctypes.addressof(data)
    # fmt: off
    command = bytearray(COMMAND.pack(
        IDENTIFY, 0, 0, namespace, 0, 0, 0, address, 0, DATA,
        NAMESPACE, 0, 0, 0, 0, 0, 0, 0,  # cdw10 to cdw15, time limit (0: the kernel's), result
    ))
    # fmt: on
    if status := fcntl.ioctl(descriptor, ADMIN_COMMAND, command):
        raise OSError(f"NVMe status {status:#x}")
    return parsed(data.raw)


def parsed(data: bytes) -> int:
    """Return the size of the namespace that an Identify structure describes."""
    (blocks,) = struct.unpack_from("<Q", data)
    form = data[FORMAT_IN_USE] & 0x0F
    return int(blocks) << data[FORMATS + 4 * form + 2]
