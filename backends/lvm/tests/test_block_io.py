"""Zeroing, scrubbing and copying real block devices: loop devices on sparse files."""

import contextlib
import errno
import fcntl
import mmap
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from csi_multi_lvm import block_io
from csi_multi_lvm.block_io import copy, scrub, zero

from csi_multi.contract import Busy, ResourceExhausted, Unavailable
from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root
KIB = 1024
MIB = 2**20
SIZE = 4 * MIB
CHUNK = MIB // 2  # in these tests, so that small devices have several
HOST = LocalHost()


class Death(BaseException):
    """The process dies here; it is no Exception, so no error handling runs."""


def nothing(offset):
    """Discard a record of progress."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(block_io, "CHUNK", CHUNK)
    monkeypatch.setattr(block_io, "ZERO_CHUNK", CHUNK)


@pytest.fixture
def every_chunk(monkeypatch):
    """Record the progress after every chunk."""
    monkeypatch.setattr(block_io, "RECORD_INTERVAL", 0.0)


@pytest.fixture
def undo(tmp_path):
    """What a test attaches and mounts is undone in reverse order; nothing of it stays."""
    with contextlib.ExitStack() as undo:
        yield undo
    assert [file for file in loopdev.bound_devices().values() if str(tmp_path) in file] == []


@pytest.fixture
def device(tmp_path, undo):
    """Create a loop device on a file of this content, padded with a hole: device("name", b"x")."""

    def make(name, content=b"", size=SIZE, *, below=tmp_path, **options):
        file = below / name
        file.write_bytes(content)
        os.truncate(file, size)
        path = loopdev.attach(HOST, file, **options)
        undo.callback(loopdev.detach, HOST, path)
        return path

    return make


@pytest.fixture
def mount(tmp_path, undo):
    """Mount something at a new directory."""

    def mount(*arguments):
        target = tmp_path / "mounted"
        target.mkdir()
        HOST.run("mount", *map(str, arguments), str(target))
        undo.callback(HOST.run, "umount", str(target))
        return target

    return mount


@pytest.fixture
def refuse(monkeypatch):
    """Let the device refuse, or fail, an ioctl: refuse(block_io.BLKZEROOUT, errno.EINVAL)."""
    real = fcntl.ioctl

    def refuse(number, error):
        def ioctl(descriptor, request, *arguments):
            if request == number:
                raise OSError(error, os.strerror(error))
            return real(descriptor, request, *arguments)

        monkeypatch.setattr(block_io.fcntl, "ioctl", ioctl)

    return refuse


@pytest.fixture
def calls(monkeypatch):
    """Every read, write, zeroing and flush in order; with `die` set to n, the process dies before call n."""

    class Calls(list):
        die = None

    found = Calls()

    def watch(module, name):
        real = getattr(module, name)

        def call(*arguments):
            if found.die is not None and len(found) >= found.die:
                raise Death
            found.append(name)
            return real(*arguments)

        monkeypatch.setattr(module, name, call)

    for name in ("preadv", "pwritev", "fsync"):
        watch(block_io.os, name)
    watch(block_io.fcntl, "ioctl")
    return found


def noise(length, seed=1):
    return random.Random(seed).randbytes(length)


def held(path):
    """Return a device's bytes, read without any cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, os.lseek(descriptor, 0, os.SEEK_END)) as buffer:
            assert os.preadv(descriptor, [buffer], 0) == len(buffer)
            return buffer[:]
    finally:
        os.close(descriptor)


def patchy(size=SIZE):
    """Data and holes, with edges at, before and after those of grains and chunks."""
    content = bytearray(size)
    for offset, length in (
        (0, 512),
        (256 * KIB - 512, 1024),
        (CHUNK - 64 * KIB, 128 * KIB),
        (3 * CHUNK - 1, 1),
        (4 * CHUNK + 128 * KIB, 192 * KIB),
        (size - 1, 1),
    ):
        content[offset : offset + length] = bytes([1 + offset % 255]) * length
    return bytes(content)


def open_descriptors():
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists them
            found.append(str(path.readlink()))
    return sorted(found)


# --- bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("sector", [512, 4096])
def test_a_copy_has_the_bytes_of_its_source(device, sparse, sector):
    content = patchy()
    source, target = device("s", content, sector_size=sector), device("t", sector_size=sector)
    copy(source, target, 0, SIZE, nothing, sparse=sparse)

    assert held(target) == content


def test_only_the_range_is_copied_and_zeroed(device):
    old, new = noise(SIZE, 1), noise(SIZE, 2)
    source, target = device("s", new), device("t", old)
    for start, end in ((512, SIZE - 512), (0, 512), (CHUNK, CHUNK), (3 * CHUNK - 4096, 3 * CHUNK + 4096)):
        copy(source, target, start, end, nothing, sparse=False)
        assert held(target) == old[:start] + new[start:end] + old[end:]
        zero(target, start, end, nothing)
        assert held(target) == old[:start] + bytes(end - start) + old[end:]
        copy_back = device(f"o{start}", old)
        copy(copy_back, target, 0, SIZE, nothing, sparse=False)


@pytest.mark.parametrize("sparse", [False, True])
def test_ranges_with_parts_of_large_sectors_are_copied_and_zeroed(device, sparse):
    old, new = noise(SIZE, 1), noise(SIZE, 2)
    source, target = device("s", new), device("t", old, sector_size=4096)
    start, end = CHUNK - 512, 3 * CHUNK + 64 * KIB + 1536
    copy(source, target, start, end, nothing, sparse=sparse)

    assert held(target) == old[:start] + new[start:end] + old[end:]
    zero(target, start, end, nothing)
    assert held(target) == old[:start] + bytes(end - start) + old[end:]


def test_a_larger_target_keeps_its_tail(device):
    content, old = noise(2 * MIB, 1), noise(SIZE, 2)
    source, target = device("s", content, 2 * MIB), device("t", old)
    copy(source, target, 0, 2 * MIB, nothing, sparse=False)

    assert held(target) == content + old[2 * MIB :]


def test_a_sparse_copy_keeps_holes_between_small_pieces_of_data(device, tmp_path):
    content = patchy()
    source, target = device("s", content), device("t")
    copy(source, target, 0, SIZE, nothing, sparse=True)

    grain = 64 * KIB  # the chunks that thin pools have at least
    grains = sum(any(content[offset : offset + grain]) for offset in range(0, SIZE, grain))
    assert 0 < (tmp_path / "t").stat().st_blocks * 512 < (grains + 1) * grain  # and the file system's own
    assert (tmp_path / "s").stat().st_size == (tmp_path / "t").stat().st_size


def test_a_sparse_copy_of_zeros_writes_nothing(device, tmp_path, calls):
    copy(device("s"), device("t"), 0, SIZE, nothing, sparse=True)

    assert "pwritev" not in calls
    assert (tmp_path / "t").stat().st_blocks == 0


def test_adjacent_data_is_written_at_once(device, calls):
    copy(device("s", noise(SIZE)), device("t"), 0, SIZE, nothing, sparse=True)

    assert calls.count("pwritev") == SIZE // CHUNK


def test_a_copy_that_is_not_sparse_overwrites_with_zeros(device):
    target = device("t", noise(SIZE))
    copy(device("s"), target, 0, SIZE, nothing, sparse=False)

    assert held(target) == bytes(SIZE)


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.EREMOTEIO])
def test_a_device_that_cannot_zero_by_itself_is_zeroed_by_writing(device, refuse, calls, error, monkeypatch):
    monkeypatch.setattr(block_io, "ZERO_CHUNK", 5 * CHUNK)  # several writes for one ioctl, the last of them short
    refuse(block_io.BLKZEROOUT, error)
    old = noise(SIZE)
    target = device("t", old)
    zero(target, CHUNK, SIZE - 512, nothing)

    assert held(target) == old[:CHUNK] + bytes(SIZE - CHUNK - 512) + old[-512:]
    assert "pwritev" in calls


def test_a_device_that_can_zero_by_itself_does(device, calls):
    zero(device("t", noise(SIZE)), 0, SIZE, nothing)

    assert "pwritev" not in calls


def test_a_failing_device_is_not_zeroed_by_writing(device, refuse, calls):
    target = device("t", noise(SIZE))
    refuse(block_io.BLKZEROOUT, errno.EIO)
    with pytest.raises(Unavailable, match=rf"zero {target} at byte {2 * CHUNK} .*: input/output error"):
        zero(target, 2 * CHUNK, SIZE, nothing)

    assert "pwritev" not in calls


@pytest.mark.parametrize("size", [SIZE, 2 * MIB, MIB + 4096, 64 * KIB])
def test_scrubbing_zeros_first_and_last_mib_and_no_more(device, size):
    old = noise(size)
    target = device("t", old, size)
    scrub(target)

    assert held(target) == bytes(min(MIB, size)) + old[MIB:-MIB] + bytes(min(MIB, max(0, size - MIB)))


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_a_scrubbed_device_has_no_signature(device, kind):
    target = device("t", size=320 * MIB)
    HOST.run(f"mkfs.{kind}", "-q", str(target))
    assert HOST.run("blkid", "-p", "-o", "value", "-s", "TYPE", str(target)).stdout.strip() == kind
    scrub(target)

    HOST.run("blkid", "-p", str(target), ok=(2,))


# --- progress, death, resumption --------------------------------------------------------------------


def jobs(device):
    """Each kind of work: on a target as it has to be before, with what the target must hold after."""
    content, old = patchy(), noise(SIZE)
    source = device("source", content)
    return {
        "zero": (old, bytes(SIZE), lambda target, start, note: zero(target, start, SIZE, note)),
        "copy": (old, content, lambda target, start, note: copy(source, target, start, SIZE, note, sparse=False)),
        "sparse": (b"", content, lambda target, start, note: copy(source, target, start, SIZE, note, sparse=True)),
    }


@pytest.mark.parametrize("job", ["zero", "copy", "sparse"])
def test_interrupted_work_is_resumed_from_its_last_record_any_number_of_times(device, every_chunk, job):
    before, after, work = jobs(device)[job]
    target = device("target", before)
    noted = [0]

    def die(offset):
        noted.append(offset)
        raise Death

    for _ in range(SIZE // CHUNK):
        with pytest.raises(Death):
            work(target, noted[-1], die)
        assert held(target)[: noted[-1]] == after[: noted[-1]]
    assert noted == list(range(0, SIZE + 1, CHUNK))
    work(target, noted[-1], nothing)
    assert held(target) == after


@pytest.mark.parametrize("job", ["zero", "copy", "sparse"])
def test_work_interrupted_at_any_call_is_completed_from_its_last_record(device, every_chunk, calls, job):
    before, after, work = jobs(device)[job]
    deaths, noted = 0, 0
    target = device("target", before)

    def note(offset):
        nonlocal noted
        noted = offset

    while True:
        calls.clear()
        calls.die, noted = deaths, 0
        try:
            work(target, 0, note)
            break
        except Death:
            calls.die = None
            assert held(target)[:noted] == after[:noted]
            deaths += 1
        finally:
            calls.die = None
    assert deaths > 2 * SIZE // CHUNK
    assert held(target) == after


SUICIDE = """
import os, sys
from pathlib import Path
from csi_multi_lvm import block_io
source, target, size, block_io.CHUNK, block_io.RECORD_INTERVAL = *map(Path, sys.argv[1:3]), *map(int, sys.argv[3:]), 0
block_io.copy(source, target, 0, size, lambda _: os.kill(os.getpid(), 9), sparse=True)
"""


def test_another_process_completes_the_work_of_a_killed_one(device):
    content = patchy()
    source, target = device("source", content), device("target")
    killed = subprocess.run([sys.executable, "-c", SUICIDE, source, target, str(SIZE), str(CHUNK)], timeout=20)
    assert killed.returncode == -signal.SIGKILL

    assert held(target) == content[:CHUNK] + bytes(SIZE - CHUNK)
    copy(source, target, CHUNK, SIZE, nothing, sparse=True)
    assert held(target) == content


@pytest.mark.parametrize("job", ["zero", "copy", "sparse"])
def test_only_durable_progress_is_recorded_and_everything_is_durable_in_the_end(device, every_chunk, calls, job):
    before, _, work = jobs(device)[job]
    work(device("target", before), 0, lambda _: calls.append("note"))

    for index, call in enumerate(calls):
        if call == "note":
            assert calls[index - 1] == "fsync"
    assert calls.count("note") == SIZE // CHUNK
    assert calls[-1] == "fsync"


def test_scrubbing_is_durable(device, calls):
    scrub(device("t"))

    assert calls[-1] == "fsync"


def test_records_and_log_messages_of_progress_are_seconds_apart(device, monkeypatch, caplog):
    clock = iter(range(0, 1000, 4))  # a chunk takes four seconds
    monkeypatch.setattr(block_io.time, "monotonic", lambda: next(clock))
    caplog.set_level("INFO")
    noted = []
    source, target = device("s", noise(SIZE)), device("t")
    copy(source, target, 0, SIZE, noted.append, sparse=False)

    assert noted == [3 * CHUNK, 6 * CHUNK]
    assert caplog.messages == [
        f"copying {source} to {target}: 37 % of 4 MiB done",
        f"copying {source} to {target}: 75 % of 4 MiB done",
    ]


def test_the_duration_of_a_record_does_not_count(device, monkeypatch):
    now = 0
    noted = []
    read = os.preadv

    def slow(*arguments):
        nonlocal now
        now += 4
        return read(*arguments)

    def note(offset):
        nonlocal now
        now += 60
        noted.append(offset)

    monkeypatch.setattr(block_io.time, "monotonic", lambda: now)
    monkeypatch.setattr(block_io.os, "preadv", slow)
    copy(device("s"), device("t"), 0, SIZE, note, sparse=True)

    assert noted == [3 * CHUNK, 6 * CHUNK]


# --- exclusion --------------------------------------------------------------------------------------


@pytest.fixture
def attempts(device):
    source = device("source", noise(SIZE))
    return (
        lambda target: zero(target, 0, SIZE, nothing),
        scrub,
        lambda target: copy(source, target, 0, SIZE, nothing, sparse=False),
    )


def test_a_mounted_device_is_never_written(device, mount, attempts):
    target = device("t", size=16 * MIB)
    HOST.run("mkfs.ext4", "-q", str(target))
    mount("-o", "ro", target)
    before = held(target)
    for attempt in attempts:
        with pytest.raises(Busy, match=str(target)):
            attempt(target)

    assert held(target) == before


def test_a_device_that_is_being_written_is_refused_to_a_second_writer(device, every_chunk, attempts):
    target = device("t")
    refusals = []

    def second(offset):
        for attempt in attempts:
            with pytest.raises(Busy, match=str(target)) as found:
                attempt(target)
            refusals.append(found)

    zero(target, 0, CHUNK, second)
    copy(device("s"), target, 0, CHUNK, second, sparse=True)

    assert len(refusals) == 2 * len(attempts)
    for attempt in attempts:
        attempt(target)  # it is not in use any more


def test_nothing_is_written_before_the_device_is_confirmed(device):
    """It is confirmed while it is open exclusively, so that nobody can replace it afterwards."""
    source, target = device("s", noise(SIZE, 1)), device("t", noise(SIZE, 2))

    def confirm():
        with pytest.raises(Busy):
            scrub(target)
        raise Death

    with pytest.raises(Death):
        copy(source, target, 0, SIZE, nothing, confirm, sparse=False)
    assert held(target) == noise(SIZE, 2)


def test_a_device_that_is_held_is_wiped_by_its_holder_only(device):
    target = device("t", noise(SIZE))
    with block_io.held(target) as alone:
        assert alone
        for attempt in (lambda: scrub(target), lambda: zero(target, 0, SIZE, nothing)):
            with pytest.raises(Busy):
                attempt()
        with block_io.held(target) as second:
            assert not second
        assert held(target) == noise(SIZE)
        scrub(target, held=True)
        assert held(target)[:MIB] == held(target)[-MIB:] == bytes(MIB)
        zero(target, 0, SIZE, nothing, held=True)
    assert held(target) == bytes(SIZE)


def test_a_mounted_device_is_held_but_not_alone(device, mount):
    target = device("t", size=16 * MIB)
    HOST.run("mkfs.ext4", "-q", str(target))
    mount(target)
    with block_io.held(target) as alone:
        assert not alone
    with pytest.raises(Unavailable, match="it does not exist"), block_io.held(target.with_name("nothing")):
        pass


def test_a_source_in_use_can_be_copied(device):
    content = patchy()
    source, target = device("s", content), device("t")
    descriptor = os.open(source, os.O_RDONLY | os.O_EXCL)
    try:
        copy(source, target, 0, SIZE, nothing, sparse=True)
    finally:
        os.close(descriptor)

    assert held(target) == content


# --- failures ---------------------------------------------------------------------------------------


def test_what_is_not_a_block_device_is_not_touched(device, tmp_path, attempts):
    file = tmp_path / "file"
    file.write_bytes(b"precious" * SIZE)
    for attempt in attempts:
        with pytest.raises(Unavailable, match=f"{file} is not a block device"):
            attempt(file)
    with pytest.raises(Unavailable, match=f"{file} is not a block device"):
        copy(file, device("t"), 0, MIB, nothing, sparse=False)

    assert file.read_bytes() == b"precious" * SIZE


def test_an_absent_device_is_unavailable(device, tmp_path, attempts):
    gone = tmp_path / "gone"
    for attempt in attempts:
        with pytest.raises(Unavailable, match=f"{gone}: it does not exist"):
            attempt(gone)
    with pytest.raises(Unavailable, match=f"{gone}: it does not exist"):
        copy(gone, device("t"), 0, MIB, nothing, sparse=False)
    assert not gone.exists()


def test_a_read_only_device_is_unavailable(device, attempts):
    target = device("t", noise(SIZE), read_only=True)
    for attempt in attempts:
        with pytest.raises(Unavailable, match=str(target)):
            attempt(target)

    assert held(target) == noise(SIZE)


def test_a_device_that_is_too_small_is_not_written(device):
    old = noise(MIB, 1)
    small, large = device("small", old, MIB), device("large", noise(SIZE, 2))
    for attempt in (
        lambda: zero(small, 0, MIB + 512, nothing),
        lambda: copy(large, small, 0, SIZE, nothing, sparse=False),
        lambda: copy(small, large, 0, SIZE, nothing, sparse=False),
    ):
        with pytest.raises(Unavailable, match=f"{small} has only {MIB} bytes"):
            attempt()

    assert held(small) == old
    assert held(large) == noise(SIZE, 2)


def test_a_read_error_names_the_source_and_the_offset(device, tmp_path):
    source, target = device("s", noise(SIZE)), device("t")
    os.truncate(tmp_path / "s", 3 * CHUNK)
    with pytest.raises(Unavailable, match=rf"read {source} at byte {3 * CHUNK} .*: input/output error"):
        copy(source, target, 0, SIZE, nothing, sparse=False)

    assert held(target) == noise(SIZE)[: 3 * CHUNK] + bytes(SIZE - 3 * CHUNK)


def shrink(file, path, size):
    os.truncate(file, size)
    loopdev.refresh(HOST, path)


@pytest.mark.parametrize("size", [512, CHUNK, CHUNK + 4096])
def test_a_source_that_shrinks_is_unavailable(device, tmp_path, every_chunk, size):
    source, target = device("s", noise(SIZE)), device("t")
    with pytest.raises(Unavailable, match=rf"read {source} at byte {CHUNK}: only {max(0, size - CHUNK)} of {CHUNK}"):
        copy(source, target, 0, SIZE, lambda _: shrink(tmp_path / "s", source, size), sparse=False)


@pytest.mark.parametrize("size", [512, CHUNK, CHUNK + 4096])
def test_a_target_that_shrinks_is_unavailable_and_not_full(device, tmp_path, every_chunk, size):
    """The kernel returns ENOSPC behind the end of a device, and the size of a removed device is 0."""
    source, target = device("s", noise(SIZE)), device("t")
    place = max(CHUNK, size)
    with pytest.raises(Unavailable, match=rf"write {target} at byte {place} .*: no space left"):
        copy(source, target, 0, SIZE, lambda _: shrink(tmp_path / "t", target, size), sparse=False)
    with pytest.raises(Unavailable, match=f"{target} has only {size} bytes"):
        zero(target, 0, SIZE, nothing)


def test_a_full_storage_behind_the_target_is_reported(device, mount):
    below = mount("-t", "tmpfs", "-o", f"size={SIZE // 2}", "tmpfs")
    source, target = device("s", noise(SIZE)), device("t", below=below)
    with pytest.raises(ResourceExhausted, match=rf"write {target} at byte {SIZE // 2} .*full"):
        copy(source, target, 0, SIZE, nothing, sparse=False)


def test_a_failed_flush_is_reported_and_nothing_is_recorded(device, every_chunk, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(block_io.os, "fsync", fsync)
    noted = []
    target = device("t")
    with pytest.raises(Unavailable, match=f"flush {target} at byte {CHUNK}: input/output error"):
        zero(target, 0, SIZE, noted.append)

    assert noted == []


def test_a_short_write_is_continued(device, monkeypatch):
    real = os.pwritev

    def pwritev(descriptor, buffers, offset):
        with memoryview(buffers[0]) as memory, memory[: max(4096, len(memory) // 2 // 4096 * 4096)] as part:
            return real(descriptor, [part], offset)

    content = noise(SIZE)
    source, target = device("s", content), device("t")
    monkeypatch.setattr(block_io.os, "pwritev", pwritev)
    copy(source, target, 0, SIZE, nothing, sparse=False)

    assert held(target) == content


@pytest.mark.parametrize("call", ["preadv", "pwritev", "fsync", "note"])
@pytest.mark.parametrize("failure", [OSError(errno.EIO, "broken"), Death()], ids=["error", "death"])
def test_nothing_is_left_open_after_a_failure(device, every_chunk, refuse, monkeypatch, call, failure):
    buffers = []

    class Buffer(mmap.mmap):
        def __init__(self, *arguments, **options):
            buffers.append(self)

    def fail(*arguments):
        raise failure

    source, target = device("s", noise(SIZE)), device("t")
    refuse(block_io.BLKZEROOUT, errno.EINVAL)
    monkeypatch.setattr(block_io.mmap, "mmap", Buffer)
    if call != "note":
        monkeypatch.setattr(block_io.os, call, fail)
    note = fail if call == "note" else nothing
    before, kept = open_descriptors(), []
    for attempt in (
        lambda: copy(source, target, 0, SIZE, note, sparse=False),
        lambda: copy(source, target, 0, SIZE, note, sparse=True),
        lambda: zero(target, 0, SIZE, note),
    ):
        try:
            attempt()
        except (Unavailable, OSError, Death) as error:
            kept.append(error)  # and with it, every frame that failed
    assert len(kept) == (2 if call == "preadv" else 3)
    assert open_descriptors() == before
    assert len(buffers) >= 2
    assert all(buffer.closed for buffer in buffers)


def test_a_refused_target_leaves_nothing_open(device, tmp_path, attempts):
    (tmp_path / "file").write_bytes(bytes(SIZE))
    small = device("small", size=64 * KIB)
    before, kept = open_descriptors(), []
    for attempt in attempts:
        for target in (tmp_path / "file", Path("/nowhere")):
            with pytest.raises(Unavailable) as found:
                attempt(target)
            kept.append(found)
    with pytest.raises(Unavailable) as found:
        copy(small, device("t"), 0, SIZE, nothing, sparse=False)
    kept.append(found)

    assert open_descriptors() == before
