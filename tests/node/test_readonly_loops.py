"""Read-only loop devices on the node: the driver's own over a raw block volume, and those of other programs."""

from __future__ import annotations

import pytest

from csi_multi.contract import InUse
from csi_multi.host import loopdev
from csi_multi.node import device_records
from tests.host.hanging import hanging_loop, within

pytestmark = pytest.mark.root


@pytest.fixture
def attached_before(world):
    """A staged raw block volume whose read-only loop device was attached in a container that was replaced since."""
    world.volume()
    world.stage(fs=None)
    device = world.device().path
    attach = f"mount --bind /dev /dev && losetup --find --show --read-only {device}"
    loop = world.sh("unshare", "--mount", "sh", "-c", attach).strip()
    world.host.loops |= {loop, str(device)}
    assert loopdev.bound_devices()[type(device)(loop)] == f"/{device.name}"
    yield loop
    if loop in map(str, loopdev.above(device)):
        world.detach(loop)


def test_a_read_only_publication_outlives_the_container_that_made_it(world, attached_before):
    world.publish(fs=None, read_only=True)
    world.publish(fs=None, read_only=True)
    before = world.mounted()

    with pytest.raises(InUse, match="is still published at"):
        world.unstage()
    assert world.mounted() == before
    world.unpublish()
    world.unstage()


def test_nothing_is_recorded_of_a_read_only_loop_device_that_is_gone(world):
    world.volume()
    world.stage(fs=None)
    world.publish(fs=None, read_only=True)
    paths = {str(world.staging()), str(world.target())}
    devices = {(one.number, one.sequence) for one in device_records._all().values() if one.paths & paths}
    assert len(devices) == 2

    world.unpublish()
    world.unstage()
    assert devices.isdisjoint((one.number, one.sequence) for one in device_records._all().values())


def test_a_foreign_read_only_loop_device_whose_file_hangs_holds_up_no_volume(world):
    world.volume()
    with hanging_loop(world.directory / "elsewhere", visible=True, read_only=True) as loop:
        path = world.directory / "foreign"
        path.touch()
        world.sh("mount", "--bind", str(loop.device), str(path))
        with loop.hanging():
            for call in (world.stage, world.publish, world.unpublish, world.unstage):
                within(10, call)
        world.sh("umount", str(path))
