"""Reading a device: every sample, in exclusive use, and only the device that is proven."""

from __future__ import annotations

import os
import random

import pytest

from csi_multi.contract import (
    Blank,
    InUse,
    Unavailable,
)
from csi_multi.node import blank_check

pytestmark = pytest.mark.root


MiB = 1024 * 1024


SIZE = 128 * MiB


def noise(offset, length=4096):
    def make(world, image):
        with image.open("r+b") as file:
            file.seek(offset % SIZE)
            file.write(random.Random(1).randbytes(length))

    return make


def sample_offset(index):
    return (
        (SIZE - blank_check.SAMPLE_BYTES)
        * index
        // (blank_check.SAMPLE_COUNT - 1)
        // blank_check.SAMPLE_BYTES
        * blank_check.SAMPLE_BYTES
    )


def test_every_sample_is_read(world):
    """The corpus takes six of them; here is each, without the cost of a stage."""
    world.volume(size=SIZE)
    loop = world.attach(world.backend.image("v1"))
    for index in range(blank_check.SAMPLE_COUNT):
        noise(sample_offset(index) + 77, 1)(world, world.backend.image("v1"))
        with blank_check.open_device(world.device()) as disk:
            found = blank_check.first_nonzero(disk.read_samples())
        assert found is not None, index
        with world.backend.image("v1").open("r+b") as file:
            file.seek(sample_offset(index) + 77)
            file.write(b"\0")
    with blank_check.open_device(world.device()) as disk:
        assert blank_check.first_nonzero(disk.read_samples()) is None
    world.detach(loop)


@pytest.mark.parametrize("state", [Blank.ZEROED, Blank.STAMPED, Blank.INTERRUPTED, Blank.NEVER])
@pytest.mark.parametrize("remaining", [0, 4096, SIZE // 2])
def test_a_device_that_cannot_be_read_is_not_formatted(world, state, remaining):
    world.volume(size=SIZE, blank=state)
    image = world.backend.image("v1")
    world.attach(image)
    os.truncate(image, remaining)  # reads beyond the end of the file fail from now on

    with pytest.raises(Unavailable, match="cannot read /dev/loop"):
        world.stage()
    assert image.read_bytes() == bytes(remaining)
    world.unstage()


def test_a_device_that_a_mkfs_still_works_on_is_left_alone(world):
    world.volume(blank=Blank.INTERRUPTED)
    loop = world.attach(world.backend.image("v1"))
    orphan = os.open(loop, os.O_RDWR | os.O_EXCL)  # as every mkfs opens its device
    before = world.digest()

    with pytest.raises(Unavailable, match="in use on this node, perhaps by a mkfs"):
        world.stage()
    assert world.digest() == before
    os.close(orphan)
    world.stage()
    world.unstage()


def test_a_device_that_is_held_in_another_namespace_is_not_closed(world):
    """As a mount in another mount namespace does, which is not in our mount table."""
    world.volume()
    world.stage()
    world.sh("umount", str(world.staging()))
    holder = os.open(world.device().path, os.O_RDONLY | os.O_EXCL)

    with pytest.raises(InUse, match="look for a process or container"):
        world.unstage()
    assert len(world.loops()) == 1
    os.close(holder)
    world.unstage()
