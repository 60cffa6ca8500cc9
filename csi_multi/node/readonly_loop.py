"""Read-only loop devices over a volume's device, because a read-only bind of a device node does not stop writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..contract.machine import Host
from ..contract.model import Device
from ..host import loopdev, mounts, sysfs
from . import device_mounts


def loops_over(device: Device) -> list[Path]:
    """Return the read-only loop devices over this device."""
    return [loop for loop in loopdev.find(device.path.resolve()) if sysfs.read_only(sysfs.number_of(loop))]


def read_only_node(host: Host, device: Device) -> Path:
    """Return a device node with the device's data that refuses writes; all read-only targets share it."""
    if sysfs.read_only(device.number):
        return device.path
    if found := loops_over(device):
        return found[0]
    sector = int(sysfs.attribute(device.number, "queue/logical_block_size") or 512)
    return loopdev.attach(host, device.path.resolve(), read_only=True, sector_size=sector)


def refresh(host: Host, device: Device) -> None:
    """Let the read-only loop devices take the device's new size."""
    for loop in loops_over(device):
        loopdev.refresh(host, loop)


def loops_bound_at(target: Path) -> list[Path]:
    """Return the read-only loop devices bound at a target, also when the device behind them is not known any more."""
    numbers = {device_mounts.bound_node_number(entry) for entry in mounts.all_at(target)}
    return [sysfs.node_of(number) for number in numbers if is_read_only_loop(number)]


def detach_unused(host: Host, loops: Sequence[Path]) -> None:
    """Detach those of these loop devices that are bound nowhere."""
    if not loops:
        return
    bound = {device_mounts.bound_node_number(entry) for entry in mounts.table()}
    for loop in set(loops):
        if sysfs.number_of(loop) not in bound:
            loopdev.detach(host, loop)


def is_read_only_loop(number: str) -> bool:
    """Whether the device with this number is a read-only loop device over another device."""
    return bool(number) and loopdev.is_over_device(number) and sysfs.read_only(number)
