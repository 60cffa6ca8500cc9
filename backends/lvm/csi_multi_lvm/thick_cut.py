"""A thick snapshot that lvm has created is made anew as of a later moment.

A thick snapshot is a device over the space that stores what has changed in its volume. The kernel begins a new store
where that space starts with zeros, and saves what is overwritten from the moment at which the device is resumed. So all
is prepared while the volume is written: the device gets another table, the space its zeros, and the device its own
table again, which takes effect when it is resumed. LVM does the same when it creates a snapshot, and its metadata does
not change.
"""

from __future__ import annotations

import mmap
import os

from csi_multi.contract import Host, Unavailable
from csi_multi.host.blockdev import open_descriptor, os_errors_as_unavailable

from .activation import Activation
from .kernel_devices import ActiveDevice

HEADER = 4096  # bytes; its first sector is enough


def prepare(host: Host, activation: Activation, member: str) -> ActiveDevice:
    """Let a snapshot, which is active, begin anew when its device is resumed; return that. Raises Unavailable."""
    device, space = activation.device(member), activation.part(member, "cow")
    if device is None or space is None:
        raise Unavailable(f"snapshot {member} has no device, although its volume is active; try again")
    table = host.run("dmsetup", "table", device.name).stdout.strip()
    start, length, target, *_ = table.split()
    if (start, target) != ("0", "snapshot") or "\n" in table:
        raise Unavailable(
            f"device-mapper does not show device {device.name} as a snapshot, but as {table!r}; try again"
        )
    host.run("dmsetup", "suspend", "--noudevsync", device.name)
    host.run("dmsetup", "load", device.name, stdin=f"0 {length} error\n")
    host.run("dmsetup", "resume", "--noudevsync", device.name)
    _zero_header(activation, space)
    host.run("dmsetup", "load", device.name, stdin=f"{table}\n")
    return device


def _zero_header(activation: Activation, space: ActiveDevice) -> None:
    path = activation.path(space)
    with (
        os_errors_as_unavailable(path),
        open_descriptor(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC) as descriptor,
        mmap.mmap(-1, HEADER) as zeros,  # direct I/O needs aligned memory
    ):
        os.pwrite(descriptor, zeros, 0)
