"""What is promised can be had, and no more is promised. No root needed, except for small disks."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from csi_multi.contract import CapacityRequest, PageRequest, ResourceExhausted

MIB = 2**20


def available(backend, **request):
    return backend.capacity(CapacityRequest(**request)).available


@pytest.fixture
def small(make, filesystem):
    return make(filesystem("tmpfs", 64 * MIB) / "pool")


@pytest.mark.root
def test_all_that_is_reported_can_be_created_and_nothing_more(small, ask):
    report = small.capacity(CapacityRequest())
    with pytest.raises(ResourceExhausted, match="do not fit"):
        small.create_volume(ask.volume("more", report.maximum + 4096))
    small.create_volume(ask.volume("all", report.maximum))

    assert 60 * MIB < report.maximum == report.available <= 64 * MIB
    assert report.minimum == MIB
    assert available(small) == 0
    with pytest.raises(ResourceExhausted):
        small.create_volume(ask.volume("one", MIB))


@pytest.mark.root
def test_a_promise_is_kept_while_a_volume_fills_up(small, ask, image):
    handle = small.create_volume(ask.volume("v", 32 * MIB)).handle
    before = available(small)
    image(small, handle).write_bytes(bytes(32 * MIB))

    assert abs(available(small) - before) <= MIB


@pytest.mark.root
def test_a_copied_snapshot_counts_what_it_holds(small, ask, image):
    handle = small.create_volume(ask.volume("v", 32 * MIB)).handle
    with image(small, handle).open("r+b") as file:
        file.write(b"x" * 10 * MIB)
    before = available(small)
    small.create_snapshot(ask.snapshot("s", handle))

    assert 0 <= before - available(small) - 10 * MIB <= MIB
    small.delete_snapshot("node-1/s", {})
    assert before - available(small) <= MIB


@pytest.mark.root
def test_blocks_that_are_shared_are_promised_to_whoever_may_overwrite_them(make, filesystem, ask, image):
    backend = make(filesystem("xfs") / "pool")
    handle = backend.create_volume(ask.volume("v", 64 * MIB)).handle
    with image(backend, handle).open("r+b") as file:
        file.write(os.urandom(40 * MIB))
        os.fsync(file.fileno())
    before = available(backend)
    snapshot = backend.create_snapshot(ask.snapshot("s", handle)).handle
    after_one = available(backend)
    backend.create_snapshot(ask.snapshot("s2", handle))
    after_two = available(backend)

    assert abs(before - after_one - 40 * MIB) <= 2 * MIB
    assert abs(after_one - after_two) <= 2 * MIB
    with image(backend, handle).open("r+b") as file:  # overwriting takes what was promised, not more
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
def test_overprovisioning_promises_more_than_there_is(make, filesystem, ask):
    backend = make(filesystem("tmpfs", 64 * MIB) / "pool", overprovision=3)
    backend.create_volume(ask.volume("v", 100 * MIB))

    assert 80 * MIB < available(backend) <= 92 * MIB
    with pytest.raises(ResourceExhausted):
        backend.expand_volume(ask.expand("node-1/v", 200 * MIB))
    assert backend.expand_volume(ask.expand("node-1/v", 150 * MIB)).size == 150 * MIB


@pytest.mark.root
def test_the_reserve_stays_free(make, filesystem):
    directory = filesystem("tmpfs", 64 * MIB) / "pool"

    assert 48 * MIB < available(make(directory, reserve_percent=20)) <= 51.2 * MIB
    assert 20 * MIB < available(make(directory, reserve_percent=20, reserve_bytes=40 * MIB)) <= 24 * MIB


@pytest.mark.root
def test_creations_at_the_same_time_do_not_share_one_promise(small, make, ask, crash):
    def create():
        with contextlib.suppress(ResourceExhausted):
            make(Path(small.config.directory)).create_volume(ask.volume("second", 40 * MIB))

    second = threading.Thread(target=create)

    def meanwhile():  # the first has looked at the space, and has not taken it yet
        second.start()
        second.join(0.5)

    small.check()
    with crash.before("os.rename", meanwhile):
        small.create_volume(ask.volume("first", 40 * MIB))
    second.join()

    assert [volume.stamp.name for volume in small.list_volumes(PageRequest()).items] == ["first"]


@pytest.mark.root
def test_a_copy_that_cannot_be_written_now_is_refused_before_it_starts(make, filesystem, ask, image, leftovers):
    backend = make(filesystem("tmpfs", 64 * MIB) / "pool", overprovision=4)
    handle = backend.create_volume(ask.volume("v", 40 * MIB)).handle
    image(backend, handle).write_bytes(bytes(40 * MIB))
    for attempt in (
        lambda: backend.create_snapshot(ask.snapshot("s", handle)),
        lambda: backend.clone_volume(ask.copy("c", "volume", handle)),
    ):
        with pytest.raises(ResourceExhausted, match="do not fit"):
            attempt()

    assert leftovers(backend) == []


@pytest.mark.root
def test_what_another_process_replaced_is_counted_as_it_is_now(make, filesystem, ask, image):
    directory = filesystem("xfs") / "pool"
    backend, other = make(directory, overprovision=2), make(directory, overprovision=2)
    for name in ("v", "w"):
        handle = backend.create_volume(ask.volume(name, 64 * MIB)).handle
        image(backend, handle).write_bytes(os.urandom(64 * MIB))
    os.sync()
    available(backend)
    other.delete_volume("node-1/v", {})
    other.clone_volume(ask.copy("v", "volume", "node-1/w"))

    wait_for(lambda: available(backend) == available(make(directory, overprovision=2)))


def test_no_volume_may_be_larger_than_the_configuration_says(make):
    assert make(max_size=32 * MIB).capacity(CapacityRequest()).maximum == 32 * MIB
