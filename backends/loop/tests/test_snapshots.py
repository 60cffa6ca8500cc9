"""Snapshots and restores of volumes that are not attached. No root needed, except for filesystems of their own."""

import contextlib
import os

import pytest

from csi_multi.contract import AlreadyExists, NotFound, PageRequest
from csi_multi.core import idempotent

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


def listed(backend, source):
    return [snapshot.handle for snapshot in backend.list_snapshots(PageRequest(), source).items]


def test_a_volume_made_anew_under_the_same_name_does_not_inherit_snapshots(backend, requests, filled):
    old = backend.create_snapshot(requests.snapshot("old", filled))
    assert listed(backend, filled) == [old.handle]
    backend.delete_volume(filled, {})
    assert listed(backend, filled) == [old.handle]
    assert backend.create_volume(requests.volume("source", 16 * MIB)).handle == filled
    assert listed(backend, filled) == []
    new = backend.create_snapshot(requests.snapshot("new", filled))

    assert listed(backend, filled) == [new.handle]
    sources = {one.handle: one.source for one in backend.list_snapshots(PageRequest()).items}
    assert sources[new.handle] == filled
    assert sources[old.handle] == backend.get_snapshot(old.handle).source != filled
    assert [one.handle for one in backend.list_snapshots(PageRequest(), sources[old.handle]).items] == [old.handle]
    assert backend.node_of(sources[old.handle]) == "node-1"
    assert backend.restore_volume(requests.copy("r", "snapshot", old.handle))


def test_a_snapshot_of_an_earlier_volume_is_not_given_for_one_of_the_present_volume(backend, requests, filled):
    idempotent.create_snapshot(backend, requests.snapshot("s", filled))
    assert idempotent.create_snapshot(backend, requests.snapshot("s", filled)).handle == "node-1/s"
    backend.delete_volume(filled, {})
    backend.create_volume(requests.volume("source", 16 * MIB))

    with pytest.raises(AlreadyExists, match="its source is volume"):
        idempotent.create_snapshot(backend, requests.snapshot("s", filled))


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs"])
def test_snapshots_and_volumes_are_deleted_from_a_filesystem_that_is_full(filesystem, connect, requests, image, kind):
    disk = filesystem(kind)
    backend = connect(disk / "pool")
    names = [f"{number}-{'n' * 40}" for number in range(24)]
    handle = backend.create_volume(requests.volume("v", 4 * MIB)).handle
    image(backend, handle).write_bytes(os.urandom(4 * MIB))
    for name in names:
        backend.create_snapshot(requests.snapshot(name, handle))
    fill(disk)
    for name in names:
        backend.delete_snapshot(f"node-1/{name}", {})
    backend.delete_volume(handle, {})

    assert os.listdir(disk / "pool/snapshots") == os.listdir(disk / "pool/volumes") == []


def fill(disk):
    """Leave no byte, no block and no inode free."""
    for size in (MIB, 4096, 1):
        with (disk / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(os.urandom(size)) == size:
                pass
    with contextlib.suppress(OSError):
        for number in range(100_000):
            (disk / f"filler-{number}").write_bytes(b"x" * 100)
