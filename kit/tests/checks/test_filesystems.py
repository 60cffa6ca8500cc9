"""Backends on whose devices filesystems are damaged, and the checks that find it. The devices are real."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.assertions import CheckFailed
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import filesystems
from csi_multi_testing.context import pattern
from csi_multi_testing.random_blocks import write_blocks

from csi_multi.contract import (
    NO_SECRETS,
    GroupSnapshot,
    GroupSnapshotRequest,
    InUse,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    VolumeRequest,
)
from csi_multi.host import loopfile

from .loop_devices import Discarding, Looped, Mixing, looped, remove_devices

pytestmark = pytest.mark.root

FREEZE, THAW = 0xC0045877, 0xC0045878


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


class Freezing(Looped):
    """Freezes the filesystem while it copies. Correct."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        with self.quiet(request.source):
            return super().create_snapshot(request)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        with self.quiet(request.source.handle):
            return super().clone_volume(request)

    @contextmanager
    def quiet(self, handle: str) -> Iterator[None]:
        device = self.loops.find(self.file(handle))
        with ExitStack() as thaw:
            for mount in loopfile.mounted(device) if device else ():
                descriptor = os.open(mount.target, os.O_RDONLY)
                thaw.callback(os.close, descriptor)
                fcntl.ioctl(descriptor, FREEZE, 0)
                thaw.callback(fcntl.ioctl, descriptor, THAW, 0)
            yield


class Refusing(Looped):
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        raise InUse(f"volume {request.source!r} is open")

    def clone_volume(self, request: VolumeRequest) -> Volume:
        raise InUse("its source is open")

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        raise InUse("volumes are open")


class CopiesTheFirstImage(Looped):
    """Copies the volume as it was when it was made."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        empty(self.file(f"@{made.handle}"), made.size)
        return made

    def clone_volume(self, request: VolumeRequest) -> Volume:
        made = super().clone_volume(request)
        empty(self.file(made.handle), made.size)
        return made


def empty(file: Path, size: int) -> None:
    file.write_bytes(b"")
    os.truncate(file, size)


class CopiesLater(Looped):
    """Answers at once, and copies when it is asked whether the snapshot is ready."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = replace(super().create_snapshot(request), ready=False)
        self.storage.snapshots[made.handle] = made
        return made

    def get_snapshot(self, handle: str) -> Snapshot:
        found = super().get_snapshot(handle)
        if not found.ready:
            shutil.copyfile(self.file(found.source), self.file(f"@{handle}"))
            found = self.storage.snapshots[handle] = replace(found, ready=True)
        return found


class Grouping(Freezing):
    """Freezes all filesystems of a group before it copies the first one. Correct."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        with ExitStack() as quiet:
            self.quiet_all(request, quiet)
            made = super().create_group_snapshot(request)
            for member in made.snapshots:
                with self.quiet_one(member.source):
                    shutil.copyfile(self.file(member.source), self.file(f"@{member.handle}"))
                    time.sleep(0.05)  # the others are written meanwhile, if they are not frozen
        return made

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        members = self.get_group_snapshot(handle).snapshots
        super().delete_group_snapshot(handle, secrets)
        for member in members:
            self.file(f"@{member.handle}").unlink()

    def quiet_all(self, request: GroupSnapshotRequest, quiet: ExitStack) -> None:
        for source in request.sources:
            quiet.enter_context(self.quiet(source))

    def quiet_one(self, handle: str) -> AbstractContextManager[None]:
        return nullcontext()


class FreezesOneByOne(Grouping):
    """Freezes each filesystem while it is copied, and no longer."""

    def quiet_all(self, request: GroupSnapshotRequest, quiet: ExitStack) -> None:
        pass

    def quiet_one(self, handle: str) -> AbstractContextManager[None]:
        return self.quiet(handle)


class Spoiling(Looped):
    """Loses the beginning of a file when the device is closed; the filesystem stays consistent."""

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        super().close_device(handle)
        if handle in self.storage.volumes:
            data = self.file(handle).read_bytes()
            if (at := data.find(pattern("kit 20", 512))) >= 0:
                with self.file(handle).open("r+b") as file:
                    file.seek(at)
                    file.write(bytes(512))


BROKEN = [
    (
        filesystems.a_group_of_mounted_filesystems_is_of_one_moment_or_refused,
        looped(FreezesOneByOne),
        "so the group is not of one moment",
    ),
    (filesystems.a_filesystem_passes_its_check_and_holds_its_files, looped(Discarding), "is damaged: e2fsck"),
    (filesystems.a_filesystem_passes_its_check_and_holds_its_files, looped(Spoiling), "among them file-20"),
    (filesystems.a_snapshot_of_a_mounted_filesystem_is_whole_or_refused, looped(CopiesLater), "made after the call"),
    (filesystems.a_snapshot_of_a_mounted_filesystem_is_whole_or_refused, looped(CopiesTheFirstImage), "is damaged"),
    (filesystems.a_clone_of_a_mounted_filesystem_is_whole_or_refused, looped(CopiesTheFirstImage), "is damaged"),
]
CHECKS = [one for one in vars(filesystems).values() if getattr(one, "__name__", "").startswith("a_")]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("kind", [Grouping, Refusing])
@pytest.mark.parametrize("check", CHECKS)
def test_loop_devices_pass(judged: Any, check: Callable[..., None], kind: type[Looped]) -> None:
    outcome = judged(check, looped(kind))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_device_that_mixes_up_writes_spoils_its_filesystem_in_one_way_or_another(judged: Any) -> None:
    outcome = judged(filesystems.a_filesystem_passes_its_check_and_holds_its_files, looped(Mixing))

    assert outcome.state is CheckState.FAILED
    assert re.search("cannot be mounted|is damaged: |have other data", outcome.text), outcome.text


def test_what_is_read_wrong_while_a_file_is_written_is_reported(judged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def misread(path: Path, blocks: list[int]) -> list[int]:
        write_blocks(path, blocks)
        return blocks[:2]

    monkeypatch.setattr(filesystems, "write_blocks", misread)

    outcome = judged(filesystems.a_filesystem_passes_its_check_and_holds_its_files, looped(Looped))

    assert outcome.state is CheckState.FAILED
    assert "2 blocks of a file have other data when they are read while others are written" in outcome.text


@pytest.mark.parametrize("check", CHECKS)
def test_volumes_that_are_too_small_are_skipped(judged: Any, check: Callable[..., None]) -> None:
    outcome = judged(check, lambda: replace(looped(Looped)(), size=64 << 10))

    assert (outcome.state, outcome.text) == (
        CheckState.SKIPPED,
        "Storage.size 65536 is too small for a filesystem with a journal",
    )


def test_a_filesystem_that_stays_in_use_is_told_and_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystems, "BUSY_SECONDS", 0.1)
    image = tmp_path / "image"
    empty(image, 4 << 20)
    with ExitStack() as users:
        with (
            pytest.raises(CheckFailed, match="a filesystem cannot be unmounted"),
            filesystems.new_filesystem(image) as at,
        ):
            file = users.enter_context((at / "used").open("w+"))
        assert not at.exists()
        file.write("kept")
        file.flush()
        assert os.fstat(file.fileno()).st_nlink == 1


def test_without_the_programs_it_is_skipped(judged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)

    outcome = judged(CHECKS[0], looped(Looped))

    assert (outcome.state, outcome.text) == (
        CheckState.SKIPPED,
        "mkfs.ext4 and e2fsck and mount and umount not installed",
    )
