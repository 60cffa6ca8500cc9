"""A volume's life takes few lvm commands, and what is left out proves nothing: on a volume group in memory.

The commands are counted here. That a volume is the same after a death at any of them, and while another process uses
it at any of them, shows that what was merged or left out is not missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
from csi_multi_lvm import labels
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import Config, Parameters

from csi_multi.contract import (
    Blank,
    Device,
    ExpandRequest,
    FailedPrecondition,
    NotFound,
    OpenRequest,
    Setting,
    SizeRange,
    Stamp,
    StorageError,
    Unavailable,
    Volume,
    VolumeRequest,
)

from .fake_lvm import DATA, EXTENT, FILESYSTEM, GROUP, MIB_SECTORS, OLD, ZEROS, FakeLvm, FakeVolume
from .fake_lvm import fake as fake

MKFS_SECTORS = 64


class Died(BaseException):
    """The process dies here."""


@dataclass(frozen=True)
class Process:
    """A process of the driver, with the node engine's steps."""

    lvm: FakeLvm
    backend: LvmBackend
    mkfs: Callable[[], None] = lambda: None  # runs when mkfs has written its first blocks

    def stage(self, volume: Volume) -> None:
        """Open, format if the device is blank, mount, record. As csi_multi/node/stage.py does."""
        device = self.backend.open_device(OpenRequest(handle=volume.handle, block=False))
        one = self.lvm.volume_at(device.path)
        if not one.mounted:
            assert one.content != OLD, "a deleted volume's data is shown"
            if device.blank is not Blank.NEVER and one.content in (ZEROS, "part of a filesystem"):
                self._format(volume, device, one)
            self._verify(device, one)
            assert one.content in (FILESYSTEM, DATA)
            one.mounted = True
        if device.blank is not Blank.NEVER:
            self.backend.formatted(volume.handle)

    def _format(self, volume: Volume, device: Device, one: FakeVolume) -> None:
        if one.content != ZEROS and device.blank is not Blank.INTERRUPTED:
            raise FailedPrecondition("it holds the rest of a filesystem")
        self.backend.formatting(volume.handle)
        self._verify(device, one)
        if one.mounted or one.holders:
            raise Unavailable("mkfs: it is in use")
        one.write("part of a filesystem", MKFS_SECTORS)
        self.mkfs()
        one.write(FILESYSTEM, MKFS_SECTORS)

    def _verify(self, device: Device, one: FakeVolume) -> None:
        if not one.active or device.number != one.number:
            raise FailedPrecondition("it is another device")

    def use(self, volume: Volume) -> None:
        """Publish and write."""
        device = self.backend.find_device(volume.handle)
        assert device
        assert device.blank is Blank.NEVER
        one = self.lvm.volume_at(device.path)
        assert one.mounted
        one.write(DATA, 8)

    def unstage(self, volume: Volume) -> None:
        device = self.backend.find_device(volume.handle)
        if device:
            self.lvm.volume_at(device.path).mounted = False
        self.backend.close_device(volume.handle)


@pytest.fixture
def start(fake: FakeLvm) -> Callable[..., Process]:
    """Start a process: start(), or start(mkfs=...)."""

    def process(**more: Callable[[], None]) -> Process:
        setting = Setting(instance="disks", driver="d", cluster="c", node="n", host=fake)
        backend = LvmBackend(Config(volume_group=GROUP, reserve_percent=0, min_size=EXTENT), setting)
        backend.check()  # reads the group, as every process does at its start
        return Process(fake, backend, **more)

    return process


Start = Callable[..., Process]


def create(process: Process, name: str = "v", **parameters: str) -> Volume:
    stamp = Stamp(driver="d", cluster="c", name=name, digest="x")
    request = VolumeRequest(stamp=stamp, size=SizeRange(required=4 * EXTENT), parameters=Parameters(**parameters))  # type: ignore[arg-type]
    return process.backend.create_volume(request)


# How many


def test_a_volumes_whole_life_takes_six_commands(fake: FakeLvm, start: Start) -> None:
    one = start()
    with fake.counted() as created:
        volume = create(one)
    with fake.counted() as staged:
        one.stage(volume)
    with fake.counted() as published:
        one.use(volume)
        one.backend.refresh_device(volume.handle)
    with fake.counted() as unstaged:
        one.unstage(volume)
    with fake.counted() as deleted:
        one.backend.delete_volume(volume.handle, {})

    assert created == ["lvcreate"]
    assert staged == ["lvchange", "lvs", "lvchange"]  # activate, look, note that it may hold data
    assert published == []
    assert unstaged == ["lvchange"]
    assert deleted == ["lvremove"]
    assert fake.volumes == {}


def test_a_used_volume_is_staged_with_two_commands_and_expanded_with_two(fake: FakeLvm, start: Start) -> None:
    one = start()
    volume = create(one)
    one.stage(volume)
    one.use(volume)
    one.unstage(volume)

    with fake.counted() as staged:
        one.stage(volume)
    with fake.counted() as again:
        one.stage(volume)
    with fake.counted() as expanded:
        one.backend.expand_volume(ExpandRequest(handle=volume.handle, size=SizeRange(required=8 * EXTENT)))
        one.backend.refresh_device(volume.handle)
    assert staged == ["lvchange", "lvs"]
    assert again == ["lvs"]
    assert expanded == ["lvs", "lvextend"]


def test_another_process_asks_lvm_about_a_device_once(fake: FakeLvm, start: Start) -> None:
    volume = create(start())
    start().stage(volume)
    other = start()

    with fake.counted() as first:
        other.use(volume)
    with fake.counted() as second:
        other.use(volume)
    assert (first, second) == (["lvs"], [])


# What is left out is not missed


@contextmanager
def at_command(fake: FakeLvm, number: int, act: Callable[[], None], *, after: bool):  # type: ignore[no-untyped-def]
    """Let something happen at one of the block's commands, once; yield a list that has their words."""
    words: list[Sequence[str]] = []

    def watch(one: Sequence[str]) -> None:
        words.append(one)
        if len(words) == number:
            fake.before = fake.after = lambda _words: None
            act()

    if after:
        fake.after = watch
    else:
        fake.before = watch
    try:
        yield words
    finally:
        fake.before = fake.after = lambda _words: None


def die() -> None:
    raise Died


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_stage_that_died_at_a_command_is_completed_by_the_next_process(
    number: int, after: bool, fake: FakeLvm, start: Start
) -> None:
    volume = create(start())
    with at_command(fake, number, die, after=after), pytest.raises(Died):
        start().stage(volume)

    start().stage(volume)
    start().use(volume)
    start().unstage(volume)
    start().stage(volume)
    assert fake.volumes["csi-v"].content == DATA
    assert not fake.volumes["csi-v"].tags & {labels.NEW, labels.FRESH, labels.FORMATTING}


@pytest.mark.parametrize("tag", [labels.FRESH, labels.FORMATTING])
def test_a_volume_that_may_hold_data_has_none_of_the_notes_of_an_unused_one(
    tag: str, fake: FakeLvm, start: Start
) -> None:
    one = start()
    volume = create(one)
    fake.volumes["csi-v"].tags = fake.volumes["csi-v"].tags - {labels.NEW} | {tag}
    fake.volumes["csi-v"].content = ZEROS

    one.stage(volume)
    assert not fake.volumes["csi-v"].tags & {labels.NEW, labels.FRESH, labels.FORMATTING}
    assert labels.DIRTY in fake.volumes["csi-v"].tags


def test_an_interrupted_mkfs_is_begun_again(fake: FakeLvm, start: Start) -> None:
    volume = create(start())
    with pytest.raises(Died):
        start(mkfs=die).stage(volume)
    assert fake.volumes["csi-v"].content == "part of a filesystem"

    start().stage(volume)
    assert fake.volumes["csi-v"].content == FILESYSTEM


def test_an_mkfs_that_failed_is_begun_again_by_the_same_process(fake: FakeLvm, start: Start) -> None:
    volume, failures = create(start()), [Unavailable("mkfs failed")]

    def fail_once() -> None:
        if failures:
            raise failures.pop()

    one = start(mkfs=fail_once)
    with pytest.raises(Unavailable):
        one.stage(volume)
    one.stage(volume)
    assert fake.volumes["csi-v"].content == FILESYSTEM


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_data_that_another_process_lets_a_user_write_meanwhile_survives(
    number: int, after: bool, fake: FakeLvm, start: Start
) -> None:
    """It stages, publishes and unstages the volume while this one is at a command."""
    volume, other, done = create(start()), start(), list[bool]()

    def use() -> None:
        try:
            other.stage(volume)
            other.use(volume)
            other.unstage(volume)
            done.append(True)
        except StorageError as error:
            print("the other process:", error)

    with at_command(fake, number, use, after=after) as words:
        try:
            start().stage(volume)
        except StorageError as error:
            print("this process:", error)
    assert len(words) >= number
    if done:
        assert fake.volumes["csi-v"].content == DATA
    fake.volumes["csi-v"].mounted = False
    start().stage(volume)
    assert fake.volumes["csi-v"].content in (FILESYSTEM, DATA)


def test_data_that_another_process_lets_a_user_write_right_before_mkfs_survives(fake: FakeLvm, start: Start) -> None:
    """This process has seen that the device is blank, and no command tells it that it is not any more."""
    one, other = start(), start()
    volume = create(one)
    device = one.backend.open_device(OpenRequest(handle=volume.handle, block=False))
    assert device.blank is Blank.STAMPED
    other.stage(volume)
    other.use(volume)
    fake.volumes["csi-v"].mounted = False

    with pytest.raises(FailedPrecondition, match="may hold data and must not be formatted"):
        one.backend.formatting(volume.handle)
    other.unstage(volume)
    with pytest.raises(FailedPrecondition, match="may hold data and must not be formatted"):
        one.backend.formatting(volume.handle)


def test_a_device_that_appeared_again_is_not_taken_for_the_one_that_was_wiped(fake: FakeLvm, start: Start) -> None:
    """As many sectors were written to it, but by another process."""
    one, other = start(), start()
    volume = create(one)
    one.backend.open_device(OpenRequest(handle=volume.handle, block=False))
    other.backend.close_device(volume.handle)
    other.backend.open_device(OpenRequest(handle=volume.handle, block=False))
    other.backend.close_device(volume.handle)  # now noted: it is not wiped again
    start().backend.open_device(OpenRequest(handle=volume.handle, block=False))
    fake.volumes["csi-v"].write(DATA, 2 * MIB_SECTORS)

    with fake.counted() as noted:
        one.backend.formatting(volume.handle)
    assert noted == ["lvchange"]
    assert labels.FORMATTING in fake.volumes["csi-v"].tags


def test_what_somebody_writes_to_a_device_that_was_opened_is_not_wiped(fake: FakeLvm, start: Start) -> None:
    """Not while it is open, nor after it was closed, nor by another process then."""
    one = start()
    volume = create(one)
    device = one.backend.open_device(OpenRequest(handle=volume.handle, block=False))
    fake.volume_at(device.path).write(DATA, 8)

    one.backend.open_device(OpenRequest(handle=volume.handle, block=False))
    one.backend.close_device(volume.handle)
    for process in (one, start()):
        process.backend.open_device(OpenRequest(handle=volume.handle, block=False))
        assert fake.volumes["csi-v"].content == DATA
        process.backend.close_device(volume.handle)


@pytest.mark.parametrize("unknown", ["sequence", "statistics"])
def test_where_the_kernel_does_not_show_what_is_written_the_notes_are_taken_at_once(
    unknown: str, fake: FakeLvm, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = fake.find_device
    if unknown == "sequence":
        monkeypatch.setattr(
            "csi_multi_lvm.kernel_devices.find_device", lambda name: (one := find(name)) and replace(one, sequence="")
        )
    else:
        monkeypatch.setattr("backends.lvm.tests.fake_lvm.FakeDevice.sectors_written", lambda _device: 0)
    volume = create(start())
    with pytest.raises(Died):
        start(mkfs=die).stage(volume)
    assert fake.volumes["csi-v"].tags & {labels.NEW, labels.FRESH, labels.FORMATTING} == {labels.FORMATTING}

    start().stage(volume)
    assert fake.volumes["csi-v"].content == FILESYSTEM


@pytest.mark.parametrize("block", [True, False], ids=["block", "read-only"])
def test_a_volume_that_is_opened_for_no_mkfs_is_wiped_once(block: bool, fake: FakeLvm, start: Start) -> None:
    one = start()
    volume = create(one, wipe="none")
    device = one.backend.open_device(OpenRequest(handle=volume.handle, block=block, read_only=not block))
    assert device.blank is Blank.STAMPED
    assert labels.FRESH in fake.volumes["csi-v"].tags

    fake.volume_at(device.path).write(DATA, 8)
    start().backend.open_device(OpenRequest(handle=volume.handle, block=block, read_only=not block))
    assert fake.volumes["csi-v"].content == DATA


def test_after_a_volume_was_opened_read_only_the_note_of_mkfs_is_taken(fake: FakeLvm, start: Start) -> None:
    """Only csi.new says what an interrupted mkfs needs, and a volume that is opened for no mkfs loses it."""
    volume = create(start())
    one = start(mkfs=die)
    for read_only in (False, True):
        one.backend.open_device(OpenRequest(handle=volume.handle, block=False, read_only=read_only))
    with pytest.raises(Died):
        one.stage(volume)

    start().stage(volume)
    assert fake.volumes["csi-v"].content == FILESYSTEM


# Volumes that are not opened


def test_an_absent_volume_is_not_found(start: Start) -> None:
    one = start()
    volume = create(one)
    one.backend.delete_volume(volume.handle, {})

    with pytest.raises(NotFound):
        one.backend.open_device(OpenRequest(handle=volume.handle, block=False))
    for note in (one.backend.formatting, one.backend.formatted):
        with pytest.raises(NotFound):
            note(volume.handle)


@pytest.mark.parametrize("whose", ["another owner's", "an incomplete copy"])
def test_a_volume_that_may_not_be_opened_is_not_left_active(whose: str, fake: FakeLvm, start: Start) -> None:
    one = start()
    volume = create(one)
    found = fake.volumes["csi-v"]
    if whose == "another owner's":
        found.tags = {"csi.owner=other/c"}
    else:
        found.tags.add(f"{labels.INTENDED_SIZE}{EXTENT}")
    before = set(found.tags)

    with pytest.raises((NotFound, FailedPrecondition)):
        one.backend.open_device(OpenRequest(handle=volume.handle, block=False))
    assert not found.active
    assert (found.tags, found.content) == (before, OLD)


def test_the_device_of_another_volume_is_neither_opened_nor_wiped(
    fake: FakeLvm, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, find = start(), fake.find_device
    volume = create(one)
    monkeypatch.setattr(
        "csi_multi_lvm.kernel_devices.find_device", lambda name: (one := find(name)) and replace(one, uuid="LVM-other")
    )

    with pytest.raises(Unavailable, match="has UUID LVM-other"):
        one.backend.open_device(OpenRequest(handle=volume.handle, block=False))
    assert fake.volumes["csi-v"].content == OLD


def test_a_volume_in_use_elsewhere_is_not_wiped(fake: FakeLvm, start: Start) -> None:
    one = start()
    volume = create(one)
    found = fake.volumes["csi-v"]
    found.active = found.mounted = True

    with pytest.raises(StorageError, match="in use on this node"):
        one.backend.open_device(OpenRequest(handle=volume.handle, block=False))
    assert found.content == OLD


def test_the_device_of_a_volume_that_was_made_again_is_not_taken_for_the_earlier_one(
    fake: FakeLvm, start: Start
) -> None:
    one, other = start(), start()
    volume = create(one)
    one.stage(volume)
    one.use(volume)
    other.unstage(volume)
    other.backend.delete_volume(volume.handle, {})
    create(other)
    other.backend.open_device(OpenRequest(handle=volume.handle, block=False))

    device = one.backend.find_device(volume.handle)
    assert device
    assert device.blank is Blank.STAMPED
    assert fake.volumes["csi-v"].sectors == 2 * MIB_SECTORS
