"""A raw block volume whose device was taken away while it was published, and another volume that gets its number."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from csi_multi.contract import FailedPrecondition, Unavailable
from csi_multi.host import sysfs
from csi_multi.node import device_records
from csi_multi.node.device_records import VolumeKey

pytestmark = pytest.mark.root

LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81  # linux/loop.h
FIRST = 700  # what `losetup --find` of other programs reaches last


class Slot:
    """A loop device that one test alone uses, in place of a disk that is detached by force."""

    def __init__(self, world) -> None:
        self.world = world
        self.index = next(index for index in range(FIRST, FIRST + 200) if self._control(LOOP_CTL_ADD, index))
        self.path = Path(f"/dev/loop{self.index}")
        self.number = sysfs.number_of(self.path)

    def give_to(self, handle: str) -> None:
        self.world.sh("losetup", str(self.path), str(self.world.backend.image(handle)))

    def take_away(self, *, removed: bool = False) -> None:
        self.world.detach(str(self.path))
        if removed:
            assert self._control(LOOP_CTL_REMOVE, self.index)

    def add_again(self) -> None:
        assert self._control(LOOP_CTL_ADD, self.index)

    def remove(self) -> None:
        if self.path.exists():
            self._control(LOOP_CTL_REMOVE, self.index)

    def _control(self, request: int, index: int) -> bool:
        descriptor = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, request, index)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.EBUSY):
                raise
            return False
        finally:
            os.close(descriptor)
        return True


@pytest.fixture
def slot(world):
    made = Slot(world)
    yield made
    world.sweep()
    made.remove()
    for handle in ("v1", "other"):
        device_records.remove(VolumeKey(driver="test", volume=f"test/{handle}"), made.number)


@pytest.fixture
def published(world, slot):
    """The target of a raw block volume, and a second volume."""
    world.volume()
    world.volume("other")
    slot.give_to("v1")
    world.stage(fs=None)
    return world.publish(fs=None)


how = pytest.mark.parametrize("removed", [False, True], ids=["no medium", "no device"])


def take_number(slot, removed):
    """Let the second volume have the number of the first one."""
    slot.take_away(removed=removed)
    if removed:
        slot.add_again()
    slot.give_to("other")


@how
def test_a_volume_is_not_staged_on_a_number_that_leads_from_the_pod_of_another_volume(world, slot, published, removed):
    take_number(slot, removed)
    for _ in range(2):
        with pytest.raises(Unavailable) as refused:
            world.stage("other", fs=None)
        assert all(part in str(refused.value) for part in ("'test/other'", "'test/v1'", str(published), "unpublish"))
    with pytest.raises(FailedPrecondition):
        world.publish("other", target=world.target("second"), fs=None)

    world.unpublish()
    world.unstage()
    assert world.mounted() == []
    world.stage("other", fs=None)
    world.publish("other", fs=None)
    world.unpublish("other")
    world.unstage("other")
    assert world.loops() == []


@how
@pytest.mark.parametrize("given", [False, True], ids=["free", "given to another volume"])
def test_a_volume_whose_device_was_taken_away_is_undone_at_any_time(world, slot, published, removed, given):
    if given:
        take_number(slot, removed)
    else:
        slot.take_away(removed=removed)

    world.unpublish()
    world.unpublish()
    assert not published.exists()
    world.unstage()
    world.unstage()
    assert world.mounted() == []
    assert not (device_records.NOTES / slot.number).exists()
    if given:
        world.unstage("other")


@how
def test_a_filesystem_is_not_mounted_from_a_number_that_leads_from_the_pod_of_another_volume(
    world, slot, published, removed
):
    take_number(slot, removed)
    with pytest.raises(Unavailable, match=str(published)):
        world.stage("other")
    assert world.backend.has_data("other") is None  # nothing was written

    world.unpublish()
    world.unstage()
    world.stage("other")
    world.unstage("other")


def test_a_volume_that_is_staged_only_keeps_its_record_when_its_number_is_taken(world, slot):
    world.volume()
    world.volume("other")
    slot.give_to("v1")
    staging = world.stage(fs=None)
    take_number(slot, removed=True)
    with pytest.raises(Unavailable, match=f"'test/v1', .*{staging}/device"):
        world.stage("other", fs=None)

    world.unstage()
    world.stage("other", fs=None)
    world.unstage("other")


def test_the_volume_that_has_the_number_now_does_not_undo_the_other_volume(world, slot, published):
    take_number(slot, removed=True)
    with pytest.raises(FailedPrecondition, match="which is volume 'test/v1', not 'other'"):
        world.unpublish("other", target=published)
    assert str(published) in world.mounted()
    world.unpublish()
    world.unstage()
    world.unstage("other")


def test_a_volume_that_returns_with_another_number_is_undone_with_both_devices(world, slot, published):
    take_number(slot, removed=True)
    loop = world.attach(world.backend.image("v1"))

    world.unpublish()
    world.unstage()
    assert world.mounted() == []
    assert loop not in world.loops()
    world.unstage("other")


def test_a_record_whose_paths_are_not_mounted_any_more_keeps_no_number(world, slot, published):
    """As after somebody has unmounted them by hand."""
    take_number(slot, removed=True)
    for path in reversed(world.mounted()):
        world.sh("umount", path)
    world.stage("other", fs=None)
    world.unstage("other")


def test_a_new_loop_device_does_not_get_a_number_that_leads_from_a_pod(world):
    world.volume()
    world.volume("other")
    world.stage(fs=None)
    target = world.publish(fs=None)
    number = world.device().number
    world.detach(str(world.device().path))

    world.stage("other", fs=None)
    world.publish("other", target=world.target("second"), fs=None)
    assert sysfs.find_number(target) == number != world.device("other").number
    assert len(world.loops()) == 1
    for handle, path in (("v1", target), ("other", world.target("second"))):
        world.unpublish(handle, path)
        world.unstage(handle)
