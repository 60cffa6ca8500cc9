"""The admin commands of the NVMe base specification that the driver sends to a disk's controller.

Both only read. Every function raises OSError, also for a status other than success.
"""

from __future__ import annotations

import ctypes
import fcntl
import struct

ADMIN_COMMAND = 0xC0484E41  # NVME_IOCTL_ADMIN_CMD of linux/nvme_ioctl.h
COMMAND = struct.Struct("=BBHIIIQQIIIIIIIIII")  # struct nvme_passthru_cmd
GET_LOG_PAGE, IDENTIFY = 0x02, 0x06
ANSWER_BYTES = 4096  # of every Identify structure, and of the log page that is read

NAMESPACE = 0  # cdw10 of Identify: which structure to return
FORMAT_IN_USE = 26  # byte: the low four bits are an index into the formats
FORMATS = 128  # byte: four bytes each, the third of them is log2 of the block size


def namespace_size(descriptor: int, namespace: int) -> int:
    """Return a namespace's size in bytes, through an open node of its disk."""
    return parse_identify(_answer(descriptor, IDENTIFY, namespace, NAMESPACE))


def parse_identify(data: bytes) -> int:
    """Return the size in bytes of the namespace that an Identify structure describes."""
    (blocks,) = struct.unpack_from("<Q", data)
    form = data[FORMAT_IN_USE] & 0x0F
    return int(blocks) << data[FORMATS + 4 * form + 2]


def log_page(descriptor: int, namespace: int, page: int) -> bytes:
    """Return the first ANSWER_BYTES of a log page."""
    return _answer(descriptor, GET_LOG_PAGE, namespace, page | (ANSWER_BYTES // 4 - 1) << 16)  # dwords, from 0


def _answer(descriptor: int, opcode: int, namespace: int, dword10: int) -> bytes:
    data = ctypes.create_string_buffer(ANSWER_BYTES)
    # fmt: off
    command = bytearray(COMMAND.pack(
        opcode, 0, 0, namespace, 0, 0, 0, ctypes.addressof(data), 0, ANSWER_BYTES,
        dword10, 0, 0, 0, 0, 0, 0, 0,  # cdw10 to cdw15, time limit (0: the kernel's), result
    ))
    # fmt: on
    if status := fcntl.ioctl(descriptor, ADMIN_COMMAND, command):
        raise OSError(f"the disk refused the command: NVMe status {status:#x}")
    return data.raw
