"""The members of a group are of one moment, while their volumes are written as fast as can be. Needs root."""

import mmap
import os
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
from csi_multi_loop import group_cut
from csi_multi_loop.client import Client
from csi_multi_testing import numbered_writes
from csi_multi_testing.numbered_writes import NumberedWrites

from csi_multi.contract import InUse, PageRequest, Unavailable
from csi_multi.host import file_extents

from .conftest import MIB

pytestmark = pytest.mark.root

CUTS = 200 if os.environ.get("MATRIX") else 40


@contextmanager
def written(paths, size):
    """Write numbers to these devices or files, each durable before the next, one after the other."""
    volumes = [SimpleNamespace(handle=handle, size=size) for handle in paths]
    openers = {handle: partial(numbered_writes._opened, path, False) for handle, path in paths.items()}
    writes = NumberedWrites(volumes, openers)
    writes.start()
    try:
        yield writes
    finally:
        writes.stop()
    writes.expect_no_error("the volumes")


def expect_one_moment(writes, group, backend, image, first, last, places):
    """The newest writes in two members are neighbours, and no write is there without those before it."""

    def read_pieces(handle, *pieces):
        with image(backend, handle, "snapshots").open("rb") as file:
            return [os.pread(file.fileno(), length, places[handle](offset)) for offset, length in pieces]

    places |= {member.handle: places[member.source] for member in group.snapshots}
    members = {member.source: member.handle for member in group.snapshots}
    writes.expect_prefix(SimpleNamespace(read_pieces=read_pieces), members, first, last, "a group")


def cut_again_and_again(backend, requests, image, writes, places, cuts=CUTS):
    """Return how often it was refused, and how long the calls took."""
    refused, took = 0, []
    for number in range(cuts):
        first, started = writes.done, time.monotonic()
        try:
            group = backend.create_group_snapshot(requests.group(f"g{number}", *places))
        except InUse:
            refused += 1
            continue
        took.append(time.monotonic() - started)
        expect_one_moment(writes, group, backend, image, first, writes.begun, dict(places))
        backend.delete_group_snapshot(group.handle, {})
    return refused, sorted(took)


@pytest.fixture
def pair(connect, requests, filesystem, opened):
    """Two volumes with a device each, in a directory of this kind."""

    def pair(kind, size=64 * MIB):
        backend = connect(filesystem(kind, 1024 * MIB, memory=True) / "pool")
        handles = [backend.create_volume(requests.volume(name, size)).handle for name in ("data", "log")]
        return backend, {handle: opened(backend, handle) for handle in handles}

    return pair


def mounted_file(device, host, mount, target, size, fs_type="ext4"):
    """A file of a filesystem on the device, and what tells where the file's bytes are on the device."""
    host.run(f"mkfs.{fs_type}", "-q", str(device))
    file = mount(device, target) / "numbers"
    file.write_bytes(os.urandom(size))
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    extents = file_extents.placed(descriptor, 0, size)
    os.close(descriptor)

    def place(offset):
        [extent] = [one for one in extents if one.offset <= offset < one.end]
        return extent.place + offset - extent.offset

    return file, place


@pytest.fixture
def slow_copies(monkeypatch):
    """Images are shared as slowly as those of many extents are: enough for several writes between two of them."""
    copy = Client.copy

    def slow(self, source, image, *, reflink):
        copy(self, source, image, reflink=reflink)
        time.sleep(0.01)

    monkeypatch.setattr(Client, "copy", slow)


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_mounted_volumes_of_a_group_are_cut_at_one_moment(
    pair, requests, image, host, mount, tmp_path, slow_copies, kind, caplog
):
    caplog.set_level("INFO", "csi_multi_loop.group_cut")
    backend, devices = pair(kind)
    size = MIB
    files, places = {}, {}
    for number, (handle, device) in enumerate(devices.items()):
        files[handle], places[handle] = mounted_file(device, host, mount, tmp_path / f"mnt-{number}", size)
    with written(files, size) as writes:
        refused, took = cut_again_and_again(backend, requests, image, writes, places)

    frozen = sorted(record.args[1] for record in caplog.records if record.name.endswith("group_cut"))
    assert (refused, len(took), len(frozen)) == (0, CUTS, CUTS)
    print(f"{kind}: {CUTS} cuts; frozen for {frozen[CUTS // 2]:.0f} ms (median), {frozen[-1]:.0f} ms (longest)")


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_raw_volumes_of_a_group_are_cut_at_one_moment_or_refused(pair, requests, image, kind):
    backend, devices = pair(kind)
    places = dict.fromkeys(devices, lambda offset: offset)
    with written(devices, 64 * MIB) as writes:
        refused, took = cut_again_and_again(backend, requests, image, writes, places)

    assert took, "it can be had"
    print(f"{kind}: {len(took)} cuts, {refused} refused, longest {took[-1] * 1000:.0f} ms")


def test_a_freeze_that_takes_too_long_refuses_the_group_and_leaves_nothing(
    pair, requests, host, mount, tmp_path, slow_copies, monkeypatch, leftovers
):
    monkeypatch.setattr(group_cut, "FREEZE_LIMIT", 0.015)
    backend, devices = pair("xfs")
    for number, device in enumerate(devices.values()):
        mounted_file(device, host, mount, tmp_path / f"mnt-{number}", MIB)

    with pytest.raises(Unavailable, match=r"thawed after|could not be frozen within"):
        backend.create_group_snapshot(requests.group("g", *devices))

    assert leftovers(backend) == []
    assert backend.list_snapshots(PageRequest()).items == ()
    (tmp_path / "mnt-0" / "probe").write_bytes(b"x")
    os.sync()  # which would wait for ever for a filesystem that is frozen


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
@pytest.mark.parametrize("how", [os.O_DIRECT | os.O_DSYNC, 0], ids=["past the page cache", "through it"])
def test_raw_volumes_that_are_written_all_the_time_are_refused_with_the_reason(
    pair, requests, monkeypatch, leftovers, image, kind, how
):
    monkeypatch.setattr(group_cut, "RAW_LIMIT", 0.1)
    backend, devices = pair(kind)
    written_to = {image(backend, handle): device for handle, device in devices.items()}
    copy, copied = Client.copy, []

    def copy_and_write(self, source, image, *, reflink):
        """One block of a volume is written right after its image was shared."""
        copy(self, source, image, reflink=reflink)
        copied.append(source)
        with mmap.mmap(-1, 4096) as block:
            block.write(len(copied).to_bytes(4096, "big"))
            descriptor = os.open(written_to[source], os.O_RDWR | how)
            os.pwrite(descriptor, block, MIB)
            os.fsync(descriptor)
            os.close(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "copy", copy_and_write)
        with pytest.raises(InUse, match="stop what writes to them"):
            backend.create_group_snapshot(requests.group("g", *devices))

    assert len(copied) >= 4, "it is tried again"
    assert leftovers(backend) == []
    assert backend.create_group_snapshot(requests.group("g", *devices))


def test_a_raw_volume_beside_a_mounted_one_is_cut_with_it(pair, requests, image, host, mount, tmp_path, slow_copies):
    backend, devices = pair("xfs")
    data, log = devices
    files, places = {log: devices[log]}, {log: lambda offset: offset}
    files[data], places[data] = mounted_file(devices[data], host, mount, tmp_path / "mnt", MIB)
    with written(dict(sorted(files.items())), MIB) as writes:
        refused, took = cut_again_and_again(backend, requests, image, writes, places, cuts=5)

    assert (refused, len(took)) == (0, 5)


def test_where_blocks_are_not_shared_a_group_in_use_is_refused_and_one_that_is_not_is_copied(
    pair, requests, leftovers, image
):
    backend, devices = pair("ext4", 4 * MIB)
    data, log = devices
    with pytest.raises(InUse, match="keep the directory on xfs or btrfs"):
        backend.create_group_snapshot(requests.group("g", *devices))
    assert leftovers(backend) == []
    for handle in devices:
        backend.close_device(handle)
        image(backend, handle).write_bytes(handle.encode() * 1000)
        os.truncate(image(backend, handle), 4 * MIB)
    group = backend.create_group_snapshot(requests.group("g", data, log))

    for member in group.snapshots:
        data = image(backend, member.handle, "snapshots").read_bytes()
        assert data.startswith(member.source.encode() * 1000)
