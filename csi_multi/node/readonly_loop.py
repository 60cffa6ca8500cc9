"""A read-only loop device over a device: a read-only bind of a device node does not stop writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..contract.machine import Host
from ..contract.model import Device
from ..host import loopdev, mounts, sysfs
from . import device_mounts


def over(device: Device) -> list[Path]:
    """Return the read-only layers over this device."""
    return [loop for loop in loopdev.find(_node(device)) if sysfs.read_only(sysfs.number_of(loop))]


def read_only(host: Host, device: Device) -> Path:
    """Return a node that shows the device and refuses writes; all read-only targets share it."""
    if sysfs.read_only(device.number):
        return device.path
    if found := over(device):
        return found[0]
    sector = int(sysfs.attribute(device.number, "queue/logical_block_size") or 512)
    return loopdev.attach(host, _node(device), read_only=True, sector_size=sector)


def refresh(host: Host, device: Device) -> None:
    """Let the layers take the device's new size."""
    for loop in over(device):
        loopdev.refresh(host, loop)


def bound_at(target: Path) -> list[Path]:
    """Return the layers bound at a target, also when the device below is not known any more."""
    numbers = {device_mounts.node_at(entry) for entry in mounts.stack(target)}
    return [_loop(number) for number in numbers if number and _is_layer(number)]


def drop_unused(host: Host, layers: Sequence[Path]) -> None:
    """Detach the layers that are bound nowhere."""
    if not layers:
        return
    bound = {device_mounts.node_at(entry) for entry in mounts.table()}
    for loop in set(layers):
        if sysfs.number_of(loop) not in bound:
            loopdev.detach(host, loop)


def _is_layer(number: str) -> bool:
    backing = sysfs.attribute(number, "loop/backing_file")
    return bool(backing) and str(backing).startswith("/dev/") and sysfs.read_only(number)


def _loop(number: str) -> Path:
    return Path("/dev") / (sysfs.BLOCK / number).resolve().name


def _node(device: Device) -> Path:
    return device.path.resolve()
