"""The reported capacity can be created, and no more. No root needed, except for small disks."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
from csi_multi_loop import capacity as capacity_module
from csi_multi_loop import counted_images, image_usage

from csi_multi.contract import CapacityRequest, PageRequest, ResourceExhausted

MIB = 2**20


def available(backend, **request):
    return backend.capacity(CapacityRequest(**request)).available


@pytest.fixture
def small(connect, filesystem):
    return connect(filesystem("tmpfs", 64 * MIB) / "pool")


@pytest.mark.root
def test_all_that_is_reported_can_be_created_and_nothing_more(small, requests):
    report = small.capacity(CapacityRequest())
    with pytest.raises(ResourceExhausted, match="do not fit"):
        small.create_volume(requests.volume("more", report.maximum + 4096))
    small.create_volume(requests.volume("all", report.maximum))

    assert 60 * MIB < report.maximum == report.available <= 64 * MIB
    assert report.minimum == MIB
    assert available(small) == 0
    with pytest.raises(ResourceExhausted):
        small.create_volume(requests.volume("one", MIB))


@pytest.mark.root
def test_the_capacity_stays_while_a_volume_fills_up(small, requests, image):
    handle = small.create_volume(requests.volume("v", 32 * MIB)).handle
    before = available(small)
    image(small, handle).write_bytes(bytes(32 * MIB))

    assert abs(available(small) - before) <= MIB


@pytest.mark.root
def test_a_copied_snapshot_counts_what_it_holds(small, requests, image):
    handle = small.create_volume(requests.volume("v", 32 * MIB)).handle
    with image(small, handle).open("r+b") as file:
        file.write(b"x" * 10 * MIB)
    before = available(small)
    small.create_snapshot(requests.snapshot("s", handle))

    assert 0 <= before - available(small) - 10 * MIB <= MIB
    small.delete_snapshot("node-1/s", {})
    assert before - available(small) <= MIB


@pytest.mark.root
def test_shared_blocks_count_for_every_volume_that_may_overwrite_them(connect, filesystem, requests, image):
    backend = connect(filesystem("xfs") / "pool")
    handle = backend.create_volume(requests.volume("v", 64 * MIB)).handle
    with image(backend, handle).open("r+b") as file:
        file.write(os.urandom(40 * MIB))
        os.fsync(file.fileno())
    before = available(backend)
    snapshot = backend.create_snapshot(requests.snapshot("s", handle)).handle
    after_one = available(backend)
    backend.create_snapshot(requests.snapshot("s2", handle))
    after_two = available(backend)

    assert abs(before - after_one - 40 * MIB) <= 2 * MIB
    assert abs(after_one - after_two) <= 2 * MIB
    with image(backend, handle).open("r+b") as file:  # overwriting takes what was counted for it, not more
        file.write(os.urandom(40 * MIB))
        os.fsync(file.fileno())
    assert available(backend) <= after_two + MIB
    for name in (snapshot, "node-1/s2"):
        backend.delete_snapshot(name, {})
    wait_for(lambda: abs(before - available(backend)) <= 2 * MIB)


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():  # filesystems free blocks in the background
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.root
def test_overprovisioning_admits_more_than_the_free_space(connect, filesystem, requests):
    backend = connect(filesystem("tmpfs", 64 * MIB) / "pool", overprovision=3)
    backend.create_volume(requests.volume("v", 100 * MIB))

    assert 80 * MIB < available(backend) <= 92 * MIB
    with pytest.raises(ResourceExhausted):
        backend.expand_volume(requests.expand("node-1/v", 200 * MIB))
    assert backend.expand_volume(requests.expand("node-1/v", 150 * MIB)).size == 150 * MIB


@pytest.mark.root
def test_the_reserve_stays_free(connect, filesystem):
    directory = filesystem("tmpfs", 64 * MIB) / "pool"

    assert 48 * MIB < available(connect(directory, reserve_percent=20)) <= 51.2 * MIB
    assert 20 * MIB < available(connect(directory, reserve_percent=20, reserve_bytes=40 * MIB)) <= 24 * MIB


@pytest.mark.root
def test_simultaneous_creations_do_not_count_the_same_space(small, connect, requests, crash):
    def create():
        with contextlib.suppress(ResourceExhausted):
            connect(Path(small.config.directory)).create_volume(requests.volume("second", 40 * MIB))

    second = threading.Thread(target=create)

    def meanwhile():  # the first has counted the space, and has not taken it yet
        second.start()
        second.join(0.5)

    small.check()
    with crash.before("os.rename", meanwhile, below=Path(small.config.directory) / "volumes"):
        small.create_volume(requests.volume("first", 40 * MIB))
    second.join()

    assert [volume.stamp.name for volume in small.list_volumes(PageRequest()).items] == ["first"]


@pytest.mark.root
def test_a_copy_that_cannot_be_written_now_is_refused_before_it_starts(connect, filesystem, requests, image, leftovers):
    backend = connect(filesystem("tmpfs", 64 * MIB) / "pool", overprovision=4)
    handle = backend.create_volume(requests.volume("v", 40 * MIB)).handle
    image(backend, handle).write_bytes(bytes(40 * MIB))
    for attempt in (
        lambda: backend.create_snapshot(requests.snapshot("s", handle)),
        lambda: backend.clone_volume(requests.copy("c", "volume", handle)),
    ):
        with pytest.raises(ResourceExhausted, match="do not fit"):
            attempt()

    assert leftovers(backend) == []


@pytest.mark.root
def test_what_another_process_replaced_is_counted_as_it_is_now(connect, filesystem, requests, image):
    directory = filesystem("xfs") / "pool"
    backend, other = connect(directory, overprovision=2), connect(directory, overprovision=2)
    for name in ("v", "w"):
        handle = backend.create_volume(requests.volume(name, 64 * MIB)).handle
        image(backend, handle).write_bytes(os.urandom(64 * MIB))
    os.sync()
    available(backend)
    other.delete_volume("node-1/v", {})
    other.clone_volume(requests.copy("v", "volume", "node-1/w"))

    def is_close():
        exact = available(connect(directory, overprovision=2))
        return exact * 0.99 - MIB <= available(backend) <= exact

    wait_for(is_close)


def test_no_volume_may_be_larger_than_the_configuration_says(connect):
    assert connect(max_size=32 * MIB).capacity(CapacityRequest()).maximum == 32 * MIB


@pytest.fixture
def looked(monkeypatch):
    """The names of the images that were looked at."""
    names = []
    count = image_usage.count_image
    monkeypatch.setattr(
        counted_images, "count_image", lambda kind, name, *rest: names.append(name) or count(kind, name, *rest)
    )
    return names


def test_beside_many_volumes_a_request_looks_only_at_what_has_changed(backend, connect, requests, looked):
    for number in range(200):
        backend.create_volume(requests.volume(f"v{number}", MIB))
    fresh = connect()
    available(fresh)
    fresh.create_volume(requests.volume("first", MIB))  # below the lock all are looked at once more
    for name, request, most in (
        ("create", lambda: fresh.create_volume(requests.volume("new", MIB)), 4),
        ("expand", lambda: fresh.expand_volume(requests.expand("node-1/new", 2 * MIB)), 4),
        ("capacity", lambda: fresh.capacity(CapacityRequest()), 4),
        ("delete", lambda: fresh.delete_volume("node-1/v7", {}), 0),
        ("capacity again", lambda: fresh.capacity(CapacityRequest()), 4),
        ("check", fresh.check, 0),
    ):
        del looked[:]
        request()
        assert len(looked) <= most, name


def test_space_that_others_take_is_gone_at_once(backend, requests, disk):
    backend.create_volume(requests.volume("v", 40 * MIB))
    before = available(backend)
    disk.free -= 30 * MIB

    assert available(backend) == before - 30 * MIB
    with pytest.raises(ResourceExhausted):
        backend.create_volume(requests.volume("w", 40 * MIB))


def test_space_that_volumes_discard_is_not_promised_twice(backend, requests, image, disk):
    handle = backend.create_volume(requests.volume("v", 60 * MIB)).handle
    image(backend, handle).write_bytes(b"x" * 50 * MIB)
    os.sync()
    disk.free = 50 * MIB
    assert available(backend) == pytest.approx(40 * MIB, abs=MIB)
    os.truncate(image(backend, handle), 0)  # as a discard of all blocks, which is no event
    os.truncate(image(backend, handle), 60 * MIB)
    disk.free = 100 * MIB

    with pytest.raises(ResourceExhausted):
        backend.create_volume(requests.volume("w", 50 * MIB))
    assert available(backend) == pytest.approx(40 * MIB, abs=MIB)


def test_a_creation_that_seems_not_to_fit_is_refused_only_after_a_look_at_all(backend, requests, image, disk, looked):
    handle = backend.create_volume(requests.volume("v", 60 * MIB)).handle
    image(backend, handle).write_bytes(b"x" * 50 * MIB)  # of what is counted for it: as much is left as before
    os.sync()
    disk.free = 50 * MIB
    del looked[:]
    backend.create_volume(requests.volume("w", 39 * MIB))

    assert "v" in looked
    with pytest.raises(ResourceExhausted, match="bytes do not fit"):
        backend.create_volume(requests.volume("x", 2 * MIB))


def test_all_images_are_looked_at_again_from_time_to_time(backend, requests, looked, monkeypatch):
    for name in "ab":
        backend.create_volume(requests.volume(name, MIB))
    del looked[:]
    available(backend)
    assert "a" not in looked
    monkeypatch.setattr(capacity_module, "LOOK_SECONDS", 0.0)
    del looked[:]
    available(backend)

    assert sorted(looked) == ["a", "b"]


def test_a_report_is_at_most_a_hundredth_too_low(backend, requests, image, disk):
    handle = backend.create_volume(requests.volume("v", 60 * MIB)).handle
    for written in range(1, 20):
        image(backend, handle).write_bytes(b"x" * written * MIB)
        os.sync()
        disk.free = (100 - written) * MIB
        exact = 40 * MIB
        assert exact * 0.99 - MIB // 10 <= available(backend) <= exact


def test_an_expansion_of_another_process_counts(backend, connect, requests, disk):
    backend.create_volume(requests.volume("v", 40 * MIB))
    available(backend)
    connect().expand_volume(requests.expand("node-1/v", 90 * MIB))

    with pytest.raises(ResourceExhausted):
        backend.create_volume(requests.volume("w", 20 * MIB))
    assert available(backend) == available(connect()) == pytest.approx(10 * MIB, abs=MIB)
