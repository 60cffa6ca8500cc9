"""Devices of logical volumes: they appear when a volume is opened, belong to it, and disappear when it is closed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import (
    AccessMode,
    Capability,
    FailedPrecondition,
    InUse,
    Mount,
    NotFound,
    Result,
    Setting,
    Unavailable,
    Volume,
)
from csi_multi.host import sysfs
from csi_multi.host.command import LocalHost
from csi_multi.node import stage, unstage
from csi_multi.node.requests import StageRequest

from .group import EXTENT, GIB, Group
from .matrix import once
from .volume_steps import (
    DyingHost,
    create,
    delete,
    device_mapper_tables,
    dm_name,
    lv_fields,
    lv_name,
    open_device,
    opened,
)

pytestmark = pytest.mark.devicemapper

NewBackend = Callable[..., LvmBackend]
TYPES = once("raid1", "linear", "thin")  # the kit tests the others
EXT4 = Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount(fs_type="ext4"))


class CountingHost(LocalHost):
    """The real host, which records the lvm commands that ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, *argv: str, **more: Any) -> Result:
        if argv[0] == "lvm":
            self.ran.append(argv[1])
        return super().run(*argv, **more)

    def counted(self, act: Callable[[], object]) -> list[str]:
        """Return the commands that something runs."""
        self.ran.clear()
        act()
        return list(self.ran)


@pytest.fixture
def no_commands(backend: NewBackend, setting: Setting) -> LvmBackend:
    """A backend that dies when it runs any command."""
    return backend(setting=replace(setting, host=DyingHost()))


@pytest.mark.parametrize("kind", ["linear", "thin"])
def test_a_volumes_whole_life_takes_few_commands(
    kind: str, group: Group, backend: NewBackend, setting: Setting, tmp_path: Path
) -> None:
    """Three for the first stage of a thick volume: the kernel counts what is written to its device."""
    host = CountingHost()
    one = backend(setting=replace(setting, host=host))
    one.check()
    made: list[Volume] = []
    assert host.counted(lambda: made.append(create(one, "v", 4 * EXTENT, type=kind))) == ["lvcreate"]
    (volume,) = made
    staging = tmp_path / "staging"
    staging.mkdir()
    wanted = StageRequest(handle=volume.handle, staging=staging, capability=EXT4)
    notes = {"linear": ["lvchange"], "thin": ["lvchange", "lvchange"]}[kind]
    for further in (notes, []):
        assert host.counted(lambda: stage.stage(host, one, wanted)) == ["lvchange", "lvs", *further]
        assert {"csi.new", "csi.fresh", "csi.formatting"} & set(
            lv_fields(group, volume, "lv_tags")["lv_tags"].split(",")
        ) == set()
        assert host.counted(lambda: one.find_device(volume.handle)) == []
        assert host.counted(lambda: unstage.unstage(host, one, volume.handle, staging)) == ["lvchange"]
    assert host.counted(lambda: delete(one, volume)) == ["lvremove"]


@pytest.mark.parametrize("kind", TYPES)
def test_a_device_exists_from_open_to_close_only(kind: str, group: Group, backend: NewBackend) -> None:
    one = backend()
    volume = create(one, "v", EXTENT, type=kind)
    assert one.find_device(volume.handle) is None
    assert device_mapper_tables(group, volume) == []

    device = open_device(one, volume)
    assert device_mapper_tables(group, volume) != []
    uuid = "".join(lv_fields(group, volume, "vg_uuid", "lv_uuid").values()).replace("-", "")
    assert device.proof == {"dm/uuid": f"LVM-{uuid}"}
    sysfs.verify(device)
    assert one.find_device(volume.handle) == device
    assert open_device(one, volume) == device  # opened twice
    one.close_device(volume.handle)
    one.close_device(volume.handle)

    assert one.find_device(volume.handle) is None
    assert device_mapper_tables(group, volume) == []
    group.lvm.run("vgchange", "-qq", "-ay", group.name)  # as at boot
    try:
        assert device_mapper_tables(group, volume) == []
        assert lv_fields(group, volume, "lv_skip_activation")["lv_skip_activation"] == "skip activation"
    finally:
        group.lvm.run("lvchange", "-qq", "-an", f"{group.name}/{lv_name(volume)}")
    delete(one, volume)


def test_the_device_of_another_volume_of_the_same_name_is_not_returned(group: Group, backend: NewBackend) -> None:
    """The device of the old volume still exists under the name of the new one."""
    one = backend()
    volume, other = create(one, "v", EXTENT), create(one, "other", EXTENT)
    open_device(one, volume)
    proof = one.find_device(volume.handle)
    assert proof is not None
    name = dm_name(group, volume)
    group.lvm.run("dmsetup", "rename", "--noudevsync", name, f"{name}x")
    group.lvm.run("dmsetup", "create", "--noudevsync", name, "-u", "LVM-somebody-else", "--table", "0 8192 zero")
    try:
        assert one.find_device(volume.handle) is None
        with pytest.raises((Unavailable, FailedPrecondition), match="LVM-"):
            open_device(one, volume)
    finally:
        group.lvm.run("dmsetup", "remove", "--noudevsync", name)
        group.lvm.run("dmsetup", "rename", "--noudevsync", f"{name}x", name)
    assert one.find_device(volume.handle) == proof
    one.close_device(volume.handle)
    delete(one, volume, other)


def test_a_volume_that_was_replaced_by_renaming_has_another_proof(group: Group, backend: NewBackend) -> None:
    one = backend()
    volume, other = create(one, "v", EXTENT), create(one, "other", EXTENT)
    before = open_device(one, volume)
    one.close_device(volume.handle)
    for old, new in (("csi-v", "kept"), ("csi-other", "csi-v")):
        group.lvm.run("lvrename", "-qq", group.name, old, new)

    after = open_device(one, volume)
    assert after.proof != before.proof
    with pytest.raises(FailedPrecondition):
        sysfs.verify(replace(after, proof=before.proof))
    one.close_device(volume.handle)
    for old, new in (("csi-v", "csi-other"), ("kept", "csi-v")):
        group.lvm.run("lvrename", "-qq", group.name, old, new)
    delete(one, volume, other)


@pytest.mark.parametrize("kind", ["thin", "linear"])
def test_one_block_that_another_program_writes_is_known_in_a_thin_volume(kind: str, backend: NewBackend) -> None:
    """lvs shows 0.00 % for it, and blkid nothing."""
    one = backend()
    volume = create(one, "v", GIB if kind == "thin" else EXTENT, type=kind)
    assert one.has_data(volume.handle) is None  # it is not open
    with opened(one, volume, block=False) as device:
        assert one.has_data(volume.handle) is {"thin": False, "linear": None}[kind]
        with device.path.open("r+b") as disk:  # through the page cache
            disk.seek(volume.size // 2)
            disk.write(b"x" * 4096)
            disk.flush()

            assert one.has_data(volume.handle) is {"thin": True, "linear": None}[kind]
    with opened(one, volume, block=False):
        assert one.has_data(volume.handle) is {"thin": True, "linear": None}[kind]
    delete(one, volume)


def test_a_device_opened_read_only_refuses_writes_until_it_is_opened_for_them(
    backend: NewBackend, volume: Volume
) -> None:
    one = backend()
    with opened(one, volume, read_only=True) as device:
        assert device.read_only
        with device.path.open("r+b", buffering=0) as disk, pytest.raises(PermissionError):
            disk.write(b"x" * 4096)
    with opened(one, volume) as device:
        assert not device.read_only
        with device.path.open("r+b") as disk:
            disk.write(b"x" * 4096)


def test_a_device_in_use_the_other_way_is_not_switched_under_its_user(backend: NewBackend, volume: Volume) -> None:
    one = backend()
    with opened(one, volume) as device, held(device.path), pytest.raises(InUse, match="read-write"):
        open_device(one, volume, read_only=True)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Use a device as a mount does."""
    descriptor = os.open(path, os.O_RDWR | os.O_EXCL)
    try:
        yield
    finally:
        os.close(descriptor)


def test_a_device_in_use_is_not_closed(backend: NewBackend, group: Group, volume: Volume) -> None:
    one = backend()
    device = open_device(one, volume)
    with held(device.path), pytest.raises(InUse, match="unpublish and unstage"):
        one.close_device(volume.handle)
    assert one.find_device(volume.handle) == device
    one.close_device(volume.handle)
    assert device_mapper_tables(group, volume) == []


def test_a_device_that_is_published_raw_is_not_closed(
    backend: NewBackend, group: Group, volume: Volume, tmp_path: Path
) -> None:
    """The kernel does not count a bind of the node as use."""
    one = backend()
    device = open_device(one, volume)
    target = tmp_path / "target"
    target.touch()
    group.lvm.run("mount", "--bind", str(device.path), str(target))
    try:
        with pytest.raises(InUse, match="unpublish and unstage"):
            one.close_device(volume.handle)
        assert one.find_device(volume.handle) == device
    finally:
        group.lvm.run("umount", str(target))
    one.close_device(volume.handle)
    assert device_mapper_tables(group, volume) == []


def test_finding_the_device_of_a_closed_volume_runs_no_command(no_commands: LvmBackend, volume: Volume) -> None:
    assert no_commands.find_device(volume.handle) is None
    no_commands.close_device(volume.handle)
    no_commands.close_device(f"{no_commands.setting.node}/{no_commands.config.volume_group}/never-made")
    assert no_commands.find_device(f"{no_commands.setting.node}/{no_commands.config.volume_group}/never-made") is None


def test_a_deleted_volume_cannot_be_opened_and_closing_it_succeeds(backend: NewBackend) -> None:
    one = backend()
    volume = create(one, "v", EXTENT)
    delete(one, volume)
    with pytest.raises(NotFound):
        open_device(one, volume)
    one.close_device(volume.handle)
