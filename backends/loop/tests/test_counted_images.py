"""Images are counted as they are on disk, and looked at only where something has changed. No root needed."""

import contextlib
import os
import random
from pathlib import Path

import pytest
from csi_multi_loop import counted_images, image_usage
from csi_multi_loop.changes import Changes
from csi_multi_loop.counted_images import CountedImages
from csi_multi_loop.directory_notes import OpenDirectory

MIB = 2**20


@pytest.fixture
def pool(backend, tmp_path):
    backend.resume()
    return tmp_path / "pool"


@pytest.fixture
def looked(monkeypatch):
    """The names of the images that were looked at."""
    names = []
    count = image_usage.count_image
    monkeypatch.setattr(
        counted_images, "count_image", lambda kind, name, *rest: names.append(name) or count(kind, name, *rest)
    )
    return names


@contextlib.contextmanager
def opened(*paths):
    with contextlib.ExitStack() as stack:
        directories = []
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            directories.append(OpenDirectory(descriptor, path))
        yield directories


def sizes(images):
    return images.sums.surely_enough


def read(images, *paths, locked=True):
    with opened(*paths) as directories:
        images.read(directories, lambda: 0, locked=locked)


def update(images, *paths, locked=True):
    with opened(*paths) as directories:
        return images.update(directories, locked=locked)


@pytest.fixture
def images(pool):
    made = CountedImages(Changes())
    read(made, pool)
    return made


def test_volumes_of_another_process_count_at_once_and_only_they_are_looked_at(
    images, pool, backend, connect, requests, looked
):
    other = connect()
    for number in range(50):
        other.create_volume(requests.volume(f"v{number:02}", MIB))
    assert update(images, pool)
    assert sizes(images) == 50 * MIB
    del looked[:]
    other.expand_volume(requests.expand("node-1/v07", 4 * MIB))
    other.delete_volume("node-1/v08", {})
    del looked[:]
    assert update(images, pool)

    assert sizes(images) == 52 * MIB
    assert set(looked) == {"v07", "v08", ".gone-v08"}
    del looked[:]
    assert update(images, pool)
    assert looked == []


@pytest.mark.parametrize("seed", range(4))
def test_after_any_operations_of_others_the_sums_are_those_of_a_new_look(images, pool, connect, requests, seed):
    chance, other, names = random.Random(seed), connect(), []
    for number in range(60):
        action = chance.choice(("create", "create", "expand", "delete", "snapshot", "clone"))
        if action == "create" or not names:
            other.create_volume(requests.volume(f"v{number}", chance.randrange(1, 9) * MIB))
            names.append(f"v{number}")
        elif action == "clone":
            other.clone_volume(requests.copy(f"v{number}", "volume", f"node-1/{chance.choice(names)}"))
            names.append(f"v{number}")
        elif action == "expand":
            other.expand_volume(requests.expand(f"node-1/{chance.choice(names)}", chance.randrange(9, 30) * MIB))
        elif action == "snapshot":
            other.create_snapshot(requests.snapshot(f"s{number}", f"node-1/{chance.choice(names)}"))
        else:
            other.delete_volume(f"node-1/{names.pop(chance.randrange(len(names)))}", {})
        if chance.random() < 0.3:
            locked = chance.random() < 0.5
            assert update(images, pool, locked=locked)
            fresh = CountedImages(Changes())
            read(fresh, pool)
            assert (images.sums.used, sizes(images)) == (fresh.sums.used, sizes(fresh))


def test_what_appears_inside_an_entry_that_is_built_counts(images, pool):
    new = pool / "volumes/.new-v"
    new.mkdir()
    assert update(images, pool)
    assert sizes(images) == 0
    (new / "volume.json").write_text('{"family": "f", "size": 4096}')
    (new / "image").touch()
    assert update(images, pool)
    assert sizes(images) == 4096
    new.rename(pool / "volumes/v")
    assert update(images, pool)
    assert sizes(images) == 4096


def test_an_entry_that_is_copied_back_by_hand_counts_once_it_is_whole(images, pool):
    entry = pool / "volumes/v"
    for step in (entry.mkdir, (entry / "image").touch):
        step()
        assert update(images, pool)
        assert sizes(images) == 0
    (entry / "volume.json").write_text('{"family": "f", "size": 4096}')
    assert update(images, pool)

    assert sizes(images) == 4096


def grow(pool, name, size):
    os.truncate(pool / "volumes" / name / "image", size)


@pytest.mark.parametrize("first", ["read", "update"])
def test_a_growth_that_is_seen_half_done_without_the_lock_is_looked_at_again(images, pool, backend, requests, first):
    backend.create_volume(requests.volume("v", MIB))
    if first == "update":
        assert update(images, pool)
    else:
        images = CountedImages(Changes())
    os.utime(pool / "volumes/v")
    if first == "update":
        assert update(images, pool, locked=False)
    else:
        read(images, pool, locked=False)
    grow(pool, "v", 8 * MIB)
    if not update(images, pool):
        read(images, pool)

    assert sizes(images) == 8 * MIB


def test_a_whole_look_without_the_lock_keeps_what_was_touched(images, pool, backend, requests, looked):
    backend.create_volume(requests.volume("v", MIB))
    assert update(images, pool)
    os.utime(pool / "volumes/v")
    read(images, pool, locked=False)
    grow(pool, "v", 8 * MIB)
    del looked[:]
    assert update(images, pool)

    assert (sizes(images), looked) == (8 * MIB, ["v"])


def test_more_touched_volumes_than_can_be_kept_let_the_next_lock_look_at_all(images, pool, monkeypatch):
    monkeypatch.setattr(counted_images, "MANY", 3)
    for name in "abcd":
        (pool / "volumes" / name).mkdir()
        os.utime(pool / "volumes" / name)

    assert update(images, pool, locked=False)
    assert not update(images, pool)
    read(images, pool)
    assert update(images, pool)


def test_a_directory_more_or_less_needs_a_look_at_all(images, pool, tmp_path):
    other = tmp_path / "other"
    (other / "volumes").mkdir(parents=True)
    assert not update(images, pool, other)
    read(images, pool, other)
    assert update(images, pool, other)
    assert not update(images, pool)


def test_a_look_that_failed_is_not_built_on(images, pool, backend, requests, monkeypatch):
    backend.create_volume(requests.volume("v", MIB))

    def fail(*_):
        raise OSError("disk error")

    with monkeypatch.context() as patch:
        patch.setattr(counted_images, "count_image", fail)
        with pytest.raises(OSError, match="disk error"):
            update(images, pool)
    assert not update(images, pool)
    read(images, pool)
    assert sizes(images) == MIB


def test_what_is_being_removed_counts_what_it_still_holds(images, pool, backend, requests, image):
    handle = backend.create_volume(requests.volume("v", 8 * MIB)).handle
    image(backend, handle).write_bytes(b"x" * MIB)
    os.sync()
    Path(pool / "volumes/v").rename(pool / "volumes/.gone-v")
    assert update(images, pool)
    assert MIB <= sizes(images) < 2 * MIB
    (pool / "volumes/.gone-v/image").unlink()
    assert update(images, pool)
    assert sizes(images) == images.sums.used == 0
