"""A filesystem on a device: the kernel writes as it does for pods, many blocks at the same time and in any order."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from csi_multi.contract import CommandFailed, Volume
from csi_multi.contract import backend as b
from csi_multi.host.command import LocalHost

from ..assertions import CheckFailed, CheckSkipped, expect
from ..check import check
from ..context import CheckContext, pattern
from ..operations.base import attempt, retry
from ..random_blocks import random_blocks, write_blocks, wrong_blocks
from ..storage import MIB
from ..waiting import wait_for
from ..writing_thread import WritingThread
from .in_use import Cloning, Copying, Grouping, Snapshotting, unless_refused

PROGRAMS = ("mkfs.ext4", "e2fsck", "mount", "umount")
MOST = 8 * MIB  # bytes of all files
FILES = 24
WRITERS = 8
JOURNALED = 2 * MIB  # bytes of the smallest filesystem that has a journal, and is whole after a crash
LENGTH = 4000  # bytes of a file that is written while its filesystem is copied
GROUPS = 3  # that are made of two filesystems
BUSY_SECONDS = 10.0  # for which another program may look at a filesystem that is to be unmounted


def require_programs() -> None:
    if absent := [name for name in PROGRAMS if not shutil.which(name)]:
        raise CheckSkipped(f"{' and '.join(absent)} not installed")
    if os.geteuid() != 0:
        raise CheckSkipped("only root can mount")


def size_for_a_filesystem(t: CheckContext) -> int:
    """Return the size of a volume. Raises CheckSkipped where the largest one that may be made is too small."""
    size = t.size if t.size >= 2 * JOURNALED else 3 * t.size
    if size < JOURNALED:
        raise CheckSkipped(f"Storage.size {t.size} is too small for a filesystem with a journal")
    return size


@check(needs=("devices",), data=True)
def a_filesystem_passes_its_check_and_holds_its_files(t: CheckContext) -> None:
    """Written by several threads, one file past the page cache; then the device is closed and opened again."""
    require_programs()
    volume = t.volume(size=size_for_a_filesystem(t))
    files = {f"file-{number}": pattern(f"kit {number}", length) for number, length in enumerate(_lengths(volume.size))}
    with t.client.device_path(volume.handle) as path, new_filesystem(path) as directory:
        random = directory / "random"
        random.write_bytes(bytes(min(volume.size, MOST) // 8))
        blocks = random_blocks(random.stat().st_size)
        with ThreadPoolExecutor(WRITERS) as pool:
            written = [pool.submit(_write, directory / name, data) for name, data in files.items()]
            misread = write_blocks(random, blocks)
            for one in written:
                one.result()

    expect(
        not misread,
        f"open_device: {len(misread)} blocks of a file have other data when they are read while others are written, "
        f"among them {misread[:3]}",
    )
    with t.client.device_path(volume.handle) as path:
        _expect_clean(path, "-n", "a filesystem whose device was closed and opened again")
        with mounted(path, "-o", "ro") as directory:
            wrong = [name for name, data in files.items() if (directory / name).read_bytes() != data]
            wrong += [f"block {block} of random" for block in wrong_blocks(directory / "random", blocks)]
    expect(
        not wrong,
        f"open_device: {len(wrong)} files and blocks of a filesystem have other data after the device was closed and "
        f"opened again, among them {', '.join(wrong[:3])}",
    )


def _lengths(size: int) -> list[int]:
    """Return the lengths of files that fill a quarter of a volume, each a little longer than the one before."""
    share = min(size, MOST) // 4 // (FILES * (FILES + 1) // 2)
    return [share * number + number for number in range(1, FILES + 1)]


def _write(file: Path, data: bytes) -> None:
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


class NumberedFiles(WritingThread):
    """Writes files, one after another, into the directories in turn; the earlier ones are removed, as few fit.

    KEPT: how many are there at a time.
    """

    KEPT = 16
    when = "while the filesystem is mounted"

    def __init__(self, *directories: Path) -> None:
        super().__init__()
        self._directories = directories

    def __enter__(self) -> NumberedFiles:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def write(self, number: int) -> None:
        directory = self._directories[number % len(self._directories)]
        _write(directory / str(number), pattern(f"kit {number}", LENGTH))
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        (directory / str(number - self.KEPT)).unlink(missing_ok=True)


def expect_whole_filesystem(t: CheckContext, copying: Copying) -> None:
    require_programs()
    volume, what = (
        t.volume(size=size_for_a_filesystem(t)),
        f"{copying.method} while its filesystem is mounted and written",
    )
    with (
        t.client.device_path(volume.handle) as path,
        new_filesystem(path) as directory,
        NumberedFiles(directory) as files,
    ):
        files.wait_for_more(what)
        first = files.done
        answer = retry(partial(unless_refused, t, copying.call(t, [volume])), what)
        last = files.begun
        files.wait_for_more(what)
    if answer is None:
        t.note(f"{copying.method}: refused while the filesystem is mounted")
        return

    [image] = copying.images(t, answer).values()
    with t.client.device_path(image.handle) as path:
        _expect_clean(path, "-p", f"{what}, then the filesystem of the copy")
        with mounted(path, "-o", "ro") as directory:
            found = {int(one.name): one.read_bytes() for one in directory.iterdir() if one.name.isdecimal()}
    newest = max(found, default=-1)
    expect(newest >= first, f"{what}: file {first} was durable before the call and is not in the copy")
    expect(newest <= last, f"{what}: the copy has file {newest}, which was made after the call had returned")
    whole = range(max(0, newest - NumberedFiles.KEPT + 1), max(newest, first + 1))
    wrong = [number for number in whole if found.get(number) != pattern(f"kit {number}", LENGTH)]
    expect(
        not wrong, f"{what}: files that were durable before file {newest} are lost or changed in the copy: {wrong[:5]}"
    )


@check(b.Snapshots, needs=("devices",), data=True)
def a_snapshot_of_a_mounted_filesystem_is_whole_or_refused(t: CheckContext) -> None:
    """The backend may freeze it. If not, it is what a crash leaves: its journal repairs it."""
    expect_whole_filesystem(t, Snapshotting())


@check(b.Clone, needs=("devices",), data=True)
def a_clone_of_a_mounted_filesystem_is_whole_or_refused(t: CheckContext) -> None:
    expect_whole_filesystem(t, Cloning())


@check(b.GroupSnapshots, needs=("devices",), data=True)
def a_group_of_mounted_filesystems_is_of_one_moment_or_refused(t: CheckContext) -> None:
    """Files are written to the two in turn. One that is frozen alone lets the other one go on."""
    require_programs()
    size, grouping = size_for_a_filesystem(t), Grouping()
    volumes = [t.volume(size=size), t.volume(size=size)]
    what = f"{grouping.method} while two filesystems are mounted and written in turn"
    with ExitStack() as used:
        paths = [used.enter_context(t.client.device_path(volume.handle)) for volume in volumes]
        files = used.enter_context(NumberedFiles(*(used.enter_context(new_filesystem(path)) for path in paths)))
        files.wait_for_more(what)
        groups = [retry(partial(unless_refused, t, grouping.call(t, volumes)), what) for _ in range(GROUPS)]
        files.wait_for_more(what)
    for answer in groups:
        if answer is None:
            t.note(f"{grouping.method}: refused while filesystems are mounted")
            continue
        images = grouping.images(t, answer)
        first, second = (_newest_file(t, images[volume.handle], what) for volume in volumes)
        expect(
            abs(first - second) == 1,
            f"{what}: the newest file of one copy is {first}, of the other one {second}; each was durable before the "
            "next one was begun, so the group is not of one moment",
        )


def _newest_file(t: CheckContext, image: Volume, what: str) -> int:
    with t.client.device_path(image.handle) as path:
        _expect_clean(path, "-p", f"{what}, then the filesystem of a copy")
        with mounted(path, "-o", "ro") as directory:
            return max((int(one.name) for one in directory.iterdir() if one.name.isdecimal()), default=-1)


def _expect_clean(path: Path, how: str, what: str) -> None:
    try:
        LocalHost().run("e2fsck", "-f", how, str(path))
    except CommandFailed as error:
        if error.status != 1:  # 1: repaired; -n repairs nothing
            raise CheckFailed(f"{what} is damaged: {error}: {error.stdout.strip()[-300:]}") from None


@contextmanager
def new_filesystem(path: Path) -> Iterator[Path]:
    LocalHost().run("mkfs.ext4", "-q", "-F", str(path))
    with mounted(path) as directory:
        yield directory


@contextmanager
def mounted(path: Path, *options: str) -> Iterator[Path]:
    """Mount it for the block. The directory is removed only when it is empty: never with the files of the mount."""
    directory = Path(tempfile.mkdtemp(prefix="csi-multi-kit-"))
    try:
        try:
            LocalHost().run("mount", "-t", "ext4", *options, str(path), str(directory))
        except CommandFailed as error:
            raise CheckFailed(f"a filesystem that was made on {path} cannot be mounted: {error}") from error
        try:
            yield directory
        except BaseException:
            with suppress(CheckFailed):  # the error of the check says more
                _unmount(directory)
            raise
        _unmount(directory)
    finally:
        with suppress(OSError):
            directory.rmdir()


def _unmount(directory: Path) -> None:
    """Raises CheckFailed for a filesystem that stays in use; it is then unmounted when its last user ends."""
    error = wait_for(
        lambda: attempt(lambda: LocalHost().run("umount", str(directory)))[1],
        lambda failure: failure is None,
        BUSY_SECONDS,
    )
    if error:
        LocalHost().run("umount", "--lazy", str(directory))
        raise CheckFailed(f"a filesystem cannot be unmounted: {error}") from error
