"""What somebody wrote to a new volume past the driver is not formatted, wherever it is and however small."""

from __future__ import annotations

import logging
import random

import pytest

from csi_multi.contract import Blank, FailedPrecondition, Unavailable

pytestmark = pytest.mark.root

MiB = 1024 * 1024
SIZE = 512 * MiB


def noise(offset, length):
    def make(world, image):
        with image.open("r+b") as file:
            file.seek(offset)
            file.write(random.Random(1).randbytes(length))

    return make


def headless(length, *argv):
    """A filesystem whose first bytes are gone, which blkid does not find."""

    def make(world, image):
        world.sh(*argv, str(image))
        with image.open("r+b") as file:
            file.write(bytes(length))
        world.sh("fallocate", "--punch-hole", "--offset", "0", "--length", str(length), str(image))

    return make


FILESYSTEMS = {
    "ext4 without 1 MiB": headless(MiB, "mkfs.ext4", "-q"),
    "ext4 without 8 MiB": headless(8 * MiB, "mkfs.ext4", "-q"),
    "ext4 of 1 KiB blocks": headless(2 * MiB, "mkfs.ext4", "-q", "-b", "1024", "-O", "^has_journal"),
    "xfs without 1 MiB": headless(MiB, "mkfs.xfs", "-q"),
    "btrfs with its mirror": headless(60 * MiB, "mkfs.btrfs", "-q"),
}
CORPUS = {
    **FILESYSTEMS,
    "a database from 100 MiB on": noise(100 * MiB + 4096, 4 * MiB),
    "one block": noise(5 * MiB + 4096, 4096),
    "one byte": noise(77 * MiB + 12345, 1),
}


@pytest.mark.parametrize("state", [Blank.ZEROED, Blank.STAMPED])
@pytest.mark.parametrize("name", CORPUS)
def test_what_the_storage_knows_to_be_written_is_refused_and_unchanged(world, name, state):
    world.volume(size=SIZE, blank=state)
    world.backend.knows_data = True
    CORPUS[name](world, world.backend.image("v1"))
    before = world.digest()

    with pytest.raises(FailedPrecondition, match=r"'v1'.* holds data.*erase it by hand"):
        world.stage()
    assert world.digest() == before
    assert world.backend.blank("v1") is state
    assert (world.mounted(), world.loops()) == ([], [])


@pytest.mark.parametrize("name", FILESYSTEMS)
def test_copies_of_a_superblock_are_found_where_the_storage_knows_nothing(world, name):
    world.volume(size=SIZE)
    FILESYSTEMS[name](world, world.backend.image("v1"))
    before = world.digest()

    with pytest.raises(FailedPrecondition, match="data without a signature"):
        world.stage()
    assert world.digest() == before


@pytest.mark.parametrize("state", [Blank.ZEROED, Blank.STAMPED])
def test_a_volume_that_the_storage_knows_to_be_unwritten_is_formatted(world, state, caplog):
    caplog.set_level(logging.INFO)
    world.volume(blank=state)
    world.backend.knows_data = True

    (world.stage() / "file").write_text("bytes")
    assert "does not know" not in caplog.text
    world.unstage()


@pytest.mark.parametrize(
    ("state", "proof"), [(Blank.ZEROED, "only samples of it were read"), (Blank.STAMPED, "only the note on it")]
)
def test_the_log_says_when_the_proof_is_weak(world, caplog, state, proof):
    caplog.set_level(logging.INFO)
    world.volume(blank=state)

    world.stage()
    assert "the storage does not know whether volume v1 was written" in caplog.text
    assert proof in caplog.text
    world.unstage()


def test_a_note_that_mkfs_began_is_believed_although_data_was_written(world):
    world.volume(blank=Blank.INTERRUPTED)
    world.backend.knows_data = True
    noise(MiB, 4096)(world, world.backend.image("v1"))

    world.stage()
    world.unstage()


def test_the_storage_is_asked_only_before_mkfs(world):
    world.volume()
    world.stage()
    world.unstage()
    assert world.backend.asked_for_data
    world.backend.asked_for_data = False
    world.stage()
    world.unstage()

    assert not world.backend.asked_for_data


def test_storage_that_cannot_answer_leaves_the_device_as_it_is(world):
    def unreachable(handle, secrets):
        raise Unavailable("the storage is unreachable")

    world.volume()
    world.backend.has_data = unreachable
    before = world.digest()

    with pytest.raises(Unavailable, match="unreachable"):
        world.stage()
    assert world.digest() == before
    world.unstage()
