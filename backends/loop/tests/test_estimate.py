"""What volumes discard does not hide what was taken since the last look at all of them. No root needed."""

import os
from pathlib import Path

import pytest
from csi_multi_loop.directory import Directory

from csi_multi.contract import CapacityRequest, ResourceExhausted

MIB = 2**20


def available(backend):
    return backend.capacity(CapacityRequest()).available


@pytest.fixture
def discard(backend, requests, image, disk):
    """Make a volume that holds 50 MiB, and return what discards these."""
    handle = backend.create_volume(requests.volume("v", 60 * MIB)).handle
    file = image(backend, handle)
    with file.open("r+b") as writing:
        writing.write(b"x" * 50 * MIB)
        os.fsync(writing.fileno())
    disk.free -= 50 * MIB

    def discard():
        if file.stat().st_blocks:
            os.truncate(file, 0)
            os.truncate(file, 60 * MIB)
            disk.free += 50 * MIB

    return discard


def test_what_is_discarded_during_a_look_does_not_count_twice(backend, connect, discard, monkeypatch):
    fresh = connect()
    with monkeypatch.context() as patch:
        free = Directory.free
        patch.setattr(Directory, "free", lambda directory: (discard(), free(directory))[1])
        during = available(fresh)  # all images were looked at before

    assert during <= available(fresh) <= available(connect()) == pytest.approx(40 * MIB, abs=MIB)


def test_what_a_deletion_frees_during_a_look_does_not_count_twice(backend, connect, discard, disk, monkeypatch):
    fresh = connect()
    gone = Path(backend.config.directory, "volumes/v")
    with monkeypatch.context() as patch:
        free = Directory.free
        patch.setattr(
            Directory,
            "free",
            lambda directory: (gone.exists() and (discard(), gone.rename(gone.with_name("w"))), free(directory))[1],
        )
        available(fresh)

    assert available(fresh) <= available(connect()) == pytest.approx(40 * MIB, abs=MIB)


def test_a_discard_does_not_hide_what_new_volumes_take_beside_their_images(connect, backend, requests, discard):
    user = connect(min_size=4096)
    available(user)
    for number in range(20):
        user.create_volume(requests.volume(f"new-{number}", 4096))
    discard()

    left = available(connect(min_size=4096))

    with pytest.raises(ResourceExhausted):
        user.create_volume(requests.volume("more", left + 4096))


def test_what_deleted_volumes_took_beside_their_images_is_free_at_once(connect, requests, disk):
    user = connect(min_size=4096)
    before = available(user)
    for number in range(20):
        user.create_volume(requests.volume(f"new-{number}", 4096))
    available(connect(min_size=4096))
    user.check()
    for number in range(20):
        user.delete_volume(f"node-1/new-{number}", {})

    assert available(user) == available(connect(min_size=4096)) == before
