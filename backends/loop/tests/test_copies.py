"""Snapshots, restores and clones of volumes that are not attached. No root needed."""

import hashlib
import json
import os
import random
import threading

import pytest
from csi_multi_loop.copies import copy

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)

MIB = 2**20


@pytest.fixture
def filled(backend, ask, image):
    """A volume with data at the head, in the middle and at the tail, and holes between."""
    handle = backend.create_volume(ask.volume("source", 16 * MIB)).handle
    write(image(backend, handle))
    return handle


def write(path, seed=1):
    source = random.Random(seed)
    with path.open("r+b") as file:
        for offset in (0, 3 * MIB + 512, 16 * MIB - 4096):
            file.seek(offset)
            file.write(source.randbytes(4096))


def digest(path, size=16 * MIB):
    with path.open("rb") as file:
        return hashlib.sha256(file.read(size)).hexdigest()


def test_data_survives_snapshot_restore_clone_and_growth(backend, ask, image, filled):
    before = digest(image(backend, filled))
    cut = backend.create_snapshot(ask.snapshot("s", filled))
    write(image(backend, filled), seed=2)
    restored = backend.restore_volume(ask.copy("r", "snapshot", cut.handle, 32 * MIB))
    cloned = backend.clone_volume(ask.copy("c", "volume", filled))
    backend.expand_volume(ask.expand(cloned.handle, 24 * MIB))

    assert (cut.size, restored.size, cloned.size) == (16 * MIB, 32 * MIB, 16 * MIB)
    assert digest(image(backend, restored.handle)) == before
    assert digest(image(backend, cloned.handle)) == digest(image(backend, filled)) != before
    for handle in (filled, restored.handle, cloned.handle):
        backend.delete_volume(handle, {})
    assert digest(image(backend, cut.handle, "snapshots")) == before
    assert backend.get_snapshot(cut.handle) == cut


def test_holes_stay_holes(backend, ask, image, filled):
    cut = backend.create_snapshot(ask.snapshot("s", filled))
    restored = backend.restore_volume(ask.copy("r", "snapshot", cut.handle))

    for path in (image(backend, cut.handle, "snapshots"), image(backend, restored.handle)):
        assert path.stat().st_blocks * 512 <= 64 * 1024
        assert path.stat().st_size == 16 * MIB


def test_a_file_that_ends_in_a_hole_or_is_one_is_copied_whole(tmp_path):
    for name, text, size in (("hole", b"", MIB), ("tail", b"data", MIB), ("empty", b"", 0)):
        source, target = tmp_path / name, tmp_path / f"{name}-copy"
        source.write_bytes(text)
        os.truncate(source, size)
        copy(source, target)

        assert target.read_bytes() == source.read_bytes()


def test_progress_is_told_while_a_copy_is_long(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("csi_multi_loop.copies.REPORT", 0.0)
    caplog.set_level("INFO")
    (tmp_path / "image").write_bytes(b"x" * 65536)
    copy(tmp_path / "image", tmp_path / "copy")

    assert "100 %" in caplog.text


def test_a_copy_may_hold_data_from_the_start(backend, ask, filled):
    handle = backend.clone_volume(ask.copy("c", "volume", filled)).handle

    with pytest.raises(FailedPrecondition, match="must not be formatted"):
        backend.formatting(handle)


def test_a_copy_is_never_smaller_than_its_source(backend, ask, filled, leftovers):
    cut = backend.create_snapshot(ask.snapshot("s", filled)).handle
    for size, limit in ((8 * MIB, 0), (0, 8 * MIB), (8 * MIB, 8 * MIB)):
        with pytest.raises(OutOfRange):
            backend.restore_volume(ask.copy("r", "snapshot", cut, size, limit=limit))
        with pytest.raises(OutOfRange):
            backend.clone_volume(ask.copy("r", "volume", filled, size, limit=limit))

    assert leftovers(backend) == []


def test_a_copy_keeps_its_sources_sector_size(backend, ask, filled, image):
    parameters = backend.Parameters(sector_size=4096)
    source = backend.create_volume(ask.volume("v", parameters=parameters)).handle
    for name, asked in (("c1", None), ("c2", 4096)):
        parameters = backend.Parameters(sector_size=asked)
        handle = backend.clone_volume(ask.copy(name, "volume", source, parameters=parameters)).handle

        assert json.loads((image(backend, handle).parent / "volume.json").read_text())["sector_size"] == 4096
    with pytest.raises(InvalidArgument, match="sectorSize"):
        backend.clone_volume(ask.copy("d", "volume", source, parameters=backend.Parameters(sector_size=512)))


def test_a_missing_source_is_not_found_unless_the_copy_is_there_already(backend, ask, filled, leftovers):
    cut = backend.create_snapshot(ask.snapshot("s", filled)).handle
    restored = ask.copy("r", "snapshot", cut)
    backend.restore_volume(restored)
    backend.delete_snapshot(cut, {})
    backend.delete_volume(filled, {})

    with pytest.raises(AlreadyExists):
        backend.restore_volume(restored)
    for attempt in (
        lambda: backend.restore_volume(ask.copy("r2", "snapshot", cut)),
        lambda: backend.clone_volume(ask.copy("c2", "volume", filled)),
        lambda: backend.create_snapshot(ask.snapshot("s2", filled)),
        lambda: backend.delete_snapshot(cut, {}),
        lambda: backend.find_snapshot("s"),
    ):
        with pytest.raises(NotFound):
            attempt()
    assert leftovers(backend) == []


def test_a_taken_snapshot_name_is_refused_even_when_the_source_is_gone(backend, ask, filled):
    cut = backend.create_snapshot(ask.snapshot("s", filled))
    backend.delete_volume(filled, {})

    with pytest.raises(AlreadyExists):
        backend.create_snapshot(ask.snapshot("s", filled))
    assert backend.find_snapshot("s") == cut
    assert cut.source == filled


def test_a_creation_time_never_changes_and_has_a_zone(backend, make, ask, filled):
    cut = backend.create_snapshot(ask.snapshot("s", filled))

    assert make().get_snapshot(cut.handle).created == cut.created
    assert cut.created.utcoffset().total_seconds() == 0


def test_many_copies_of_one_source_are_made_at_once(backend, ask, filled, image):
    errors = []

    def clone(number):
        try:
            backend.clone_volume(ask.copy(f"c{number}", "volume", filled))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=clone, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert {digest(image(backend, f"node-1/c{number}")) for number in range(8)} == {digest(image(backend, filled))}


@pytest.mark.root
def test_a_disk_that_fills_up_during_a_copy_leaves_nothing_behind(make, ask, image, filesystem, crash, leftovers):
    directory = filesystem("tmpfs", 32 * MIB) / "pool"
    backend = make(directory, overprovision=4)
    source = backend.create_volume(ask.volume("v", 8 * MIB)).handle
    image(backend, source).write_bytes(os.urandom(8 * MIB))
    hog = directory / "hog"

    def fill():
        free = os.statvfs(directory)
        hog.write_bytes(bytes(free.f_bavail * free.f_frsize - MIB))

    for attempt in (
        lambda: backend.create_snapshot(ask.snapshot("s", source)),
        lambda: backend.clone_volume(ask.copy("c", "volume", source)),
    ):
        with crash.before("os.truncate", fill), pytest.raises(ResourceExhausted, match="No space left"):
            attempt()
        hog.unlink()
        assert leftovers(backend) == []
        attempt()
        assert leftovers(backend) == []
    assert sorted(path.name for path in (directory / "volumes").iterdir()) == ["c", "v"]


@pytest.mark.root
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_where_blocks_can_be_shared_a_copy_takes_no_space(make, ask, image, filesystem, kind):
    backend = make(filesystem(kind) / "pool", overprovision=2)
    source = backend.create_volume(ask.volume("v", 64 * MIB)).handle
    path = image(backend, source)
    path.write_bytes(os.urandom(64 * MIB))
    os.sync()
    before = os.statvfs(path).f_bavail
    cut = backend.create_snapshot(ask.snapshot("s", source)).handle
    restored = backend.restore_volume(ask.copy("r", "snapshot", cut, 80 * MIB))
    os.sync()

    assert (before - os.statvfs(path).f_bavail) * os.statvfs(path).f_frsize < 8 * MIB
    assert digest(image(backend, restored.handle), 64 * MIB) == digest(path, 64 * MIB)
    path.write_bytes(bytes(64 * MIB))
    assert digest(image(backend, restored.handle), 64 * MIB) != digest(path, 64 * MIB)
