"""Snapshots and restores of volumes that are not attached. No root needed, except for filesystems of their own."""

import os

import pytest

from csi_multi.contract import (
    AlreadyExists,
    NotFound,
)

from .conftest import digest, write

MIB = 2**20


def test_data_survives_snapshot_restore_clone_and_growth(backend, requests, image, filled):
    before = digest(image(backend, filled))
    snapshot = backend.create_snapshot(requests.snapshot("s", filled))
    write(image(backend, filled), seed=2)
    restored = backend.restore_volume(requests.copy("r", "snapshot", snapshot.handle, 32 * MIB))
    cloned = backend.clone_volume(requests.copy("c", "volume", filled))
    backend.expand_volume(requests.expand(cloned.handle, 24 * MIB))

    assert (snapshot.size, restored.size, cloned.size) == (16 * MIB, 32 * MIB, 16 * MIB)
    assert digest(image(backend, restored.handle)) == before
    assert digest(image(backend, cloned.handle)) == digest(image(backend, filled)) != before
    for handle in (filled, restored.handle, cloned.handle):
        backend.delete_volume(handle, {})
    assert digest(image(backend, snapshot.handle, "snapshots")) == before
    assert backend.get_snapshot(snapshot.handle) == snapshot


def test_holes_stay_holes(backend, requests, image, filled):
    snapshot = backend.create_snapshot(requests.snapshot("s", filled))
    restored = backend.restore_volume(requests.copy("r", "snapshot", snapshot.handle))

    for path in (image(backend, snapshot.handle, "snapshots"), image(backend, restored.handle)):
        assert path.stat().st_blocks * 512 <= 64 * 1024
        assert path.stat().st_size == 16 * MIB


def test_a_missing_source_is_not_found_unless_the_copy_is_there_already(backend, requests, filled, leftovers):
    snapshot = backend.create_snapshot(requests.snapshot("s", filled)).handle
    restored = requests.copy("r", "snapshot", snapshot)
    backend.restore_volume(restored)
    backend.delete_snapshot(snapshot, {})
    backend.delete_volume(filled, {})

    with pytest.raises(AlreadyExists):
        backend.restore_volume(restored)
    for attempt in (
        lambda: backend.restore_volume(requests.copy("r2", "snapshot", snapshot)),
        lambda: backend.clone_volume(requests.copy("c2", "volume", filled)),
        lambda: backend.create_snapshot(requests.snapshot("s2", filled)),
        lambda: backend.delete_snapshot(snapshot, {}),
        lambda: backend.find_snapshot("s"),
    ):
        with pytest.raises(NotFound):
            attempt()
    assert leftovers(backend) == []


def test_a_taken_snapshot_name_is_refused_even_when_the_source_is_gone(backend, requests, filled):
    snapshot = backend.create_snapshot(requests.snapshot("s", filled))
    backend.delete_volume(filled, {})

    with pytest.raises(AlreadyExists):
        backend.create_snapshot(requests.snapshot("s", filled))
    assert backend.find_snapshot("s") == snapshot
    assert snapshot.source == filled


def test_a_creation_time_never_changes_and_has_a_zone(backend, connect, requests, filled):
    snapshot = backend.create_snapshot(requests.snapshot("s", filled))

    assert connect().get_snapshot(snapshot.handle).created == snapshot.created
    assert snapshot.created.utcoffset().total_seconds() == 0


@pytest.mark.root
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_where_blocks_can_be_shared_a_copy_takes_no_space(connect, requests, image, filesystem, kind):
    backend = connect(filesystem(kind) / "pool", overprovision=2)
    source = backend.create_volume(requests.volume("v", 64 * MIB)).handle
    path = image(backend, source)
    path.write_bytes(os.urandom(64 * MIB))
    os.sync()
    before = os.statvfs(path).f_bavail
    snapshot = backend.create_snapshot(requests.snapshot("s", source)).handle
    restored = backend.restore_volume(requests.copy("r", "snapshot", snapshot, 80 * MIB))
    os.sync()

    assert (before - os.statvfs(path).f_bavail) * os.statvfs(path).f_frsize < 8 * MIB
    assert digest(image(backend, restored.handle), 64 * MIB) == digest(path, 64 * MIB)
    path.write_bytes(bytes(64 * MIB))
    assert digest(image(backend, restored.handle), 64 * MIB) != digest(path, 64 * MIB)
