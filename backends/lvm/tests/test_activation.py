"""Devices that lack a node or are suspended, on real LVM."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from csi_multi_lvm import kernel_devices
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import Volume
from csi_multi.host import sysfs
from csi_multi.host.command import LocalHost

from .group import Group
from .volume_steps import device_mapper_tables, dm_name, open_device

pytestmark = pytest.mark.devicemapper

NewBackend = Callable[..., LvmBackend]


def test_a_device_without_its_node_in_dev_mapper_is_found_and_opened(
    backend: NewBackend, group: Group, volume: Volume
) -> None:
    one = backend()
    device = open_device(one, volume)
    (Path("/dev/mapper") / dm_name(group, volume)).unlink()

    found = one.find_device(volume.handle)
    assert found is not None
    assert (found.number, found.proof) == (device.number, device.proof)
    sysfs.verify(found)
    sysfs.verify(open_device(one, volume))
    one.close_device(volume.handle)
    assert device_mapper_tables(group, volume) == []


def test_a_device_without_any_node_gets_one(backend: NewBackend, group: Group, volume: Volume) -> None:
    one = backend()
    device = open_device(one, volume)
    minor = device.number.partition(":")[2]
    nodes = [Path("/dev/mapper") / dm_name(group, volume), Path(f"/dev/dm-{minor}")]
    there = [node for node in nodes if node.exists()]
    for node in there:
        node.unlink()
    try:
        found = one.find_device(volume.handle)
        assert found is not None
        sysfs.verify(found)
    finally:
        for node in there:
            if not node.exists():
                os.mknod(node, 0o60600, os.makedev(*map(int, device.number.split(":"))))
    one.close_device(volume.handle)


def test_a_device_that_was_left_suspended_is_resumed_when_it_is_opened(
    backend: NewBackend, group: Group, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csi_multi_lvm.activation.SUSPENSION_SECONDS", 0.5)
    one = backend()
    device = open_device(one, volume)
    name = dm_name(group, volume)
    group.lvm.run("dmsetup", "suspend", "--noudevsync", name)
    assert kernel_devices.suspended_devices(name) == [name]

    assert open_device(one, volume) == device
    assert kernel_devices.suspended_devices(name) == []
    with device.path.open("r+b") as disk:
        disk.write(b"x" * 4096)
        os.fsync(disk.fileno())


def test_a_device_that_is_suspended_for_a_moment_is_waited_for(
    backend: NewBackend, group: Group, volume: Volume, caplog: pytest.LogCaptureFixture
) -> None:
    one = backend()
    device = open_device(one, volume)
    name = dm_name(group, volume)
    LocalHost().run("dmsetup", "suspend", "--noudevsync", name)
    resume = threading.Timer(2.0, LocalHost().run, ("dmsetup", "resume", "--noudevsync", name))
    resume.start()
    assert open_device(one, volume) == device
    assert kernel_devices.suspended_devices(name) == []
    assert caplog.messages == []  # no repair was needed
    resume.join()
