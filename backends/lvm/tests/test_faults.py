"""Disks that fail, disappear, or fail some reads and writes, on real LVM.

Meanwhile each request fails in time, with the error that lets the orchestrator act correctly; what exists is never
reported as absent and never formatted; and when the disk works again the same requests succeed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import (
    AccessMode,
    Capability,
    CommandFailed,
    FailedPrecondition,
    Mount,
    PageRequest,
    ResourceExhausted,
    Result,
    StorageError,
    Unavailable,
    Volume,
)
from csi_multi.host import mounts
from csi_multi.host.command import LocalHost
from csi_multi.node import stage, unstage
from csi_multi.node.requests import StageRequest

from . import volume_steps
from .faulty import Faulty, clear, faulty_group
from .group import EXTENT, MIB, Lvm
from .volume_steps import (
    copy,
    create,
    delete,
    expand,
    in_time,
    listed_names,
    open_device,
    opened,
    read,
    reasons,
    refused,
    snapshot,
    storage_reasons,
)

pytestmark = pytest.mark.devicemapper

POOL = 32 * MIB
COMMIT = 2.5  # seconds within which the kernel has written what it knows of a pool
EXT4 = Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount(fs_type="ext4"))
TEXT = "what a user wrote"

Make = Callable[..., LvmBackend]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """A group on two disks that can fail, shared by this module's tests."""
    with faulty_group(lvm, tmp_path_factory.mktemp("faults"), pool=POOL) as group:
        yield group


@pytest.fixture(autouse=True)
def well_again(group: Faulty) -> Iterator[None]:
    """Repair the disks, and remove what a failed test left, so that it does not affect the next one."""
    yield
    group.mend()
    clear(group)


# A disk is missing


def test_while_a_disk_is_missing_changes_are_resource_exhausted(backend: Make, group: Faulty) -> None:
    ours = backend()
    with group.only_on(group.first):
        thick = create(ours, "thick", type="linear")
    thin = create(ours, "thin", type="thin")
    group.second.pull()

    changes: list[Callable[[LvmBackend], object]] = [
        lambda one: create(one, "new", type="linear"),
        lambda one: create(one, "new-thin", type="thin"),
        lambda one: snapshot(one, "snap", thick),
        lambda one: snapshot(one, "snap-thin", thin),
        lambda one: expand(one, thick, 5 * EXTENT),
        lambda one: expand(one, thin, 5 * EXTENT),
    ]
    for change in changes:
        with refused(ResourceExhausted):
            change(ours)  # the first of them has a cached report of a healthy group
    assert listed_names(ours) == ["thick", "thin"]
    assert storage_reasons(ours) == ["DisksMissing"]

    group.mend()
    made = [change(ours) for change in changes]
    assert storage_reasons(ours) == []
    delete(ours, *made[2:4], *made[:2], thick, thin)  # type: ignore[arg-type]


def test_volumes_on_the_other_disk_are_used_and_deleted_while_one_is_missing(backend: Make, group: Faulty) -> None:
    ours = backend()
    with group.only_on(group.second):
        lost = create(ours, "lost", type="linear")
    with group.only_on(group.first):
        thick = create(ours, "thick", type="linear")
    thin = create(ours, "thin", type="thin")
    group.second.pull()

    with refused(FailedPrecondition, "missing"):
        open_device(ours, lost)
    for one in (thick, thin):
        with in_time(), opened(ours, one, block=False) as device:
            device.path.write_bytes(b"x" * 4096)
        assert reasons(ours, one) == []
        with in_time():
            delete(ours, one)
    assert listed_names(ours) == ["lost"]
    assert reasons(ours, lost) == ["DisksMissing"]

    group.mend()
    assert reasons(ours, lost) == []
    with opened(ours, lost, block=False):
        pass
    delete(ours, lost)


def test_a_volume_on_a_missing_disk_can_be_deleted(backend: Make, group: Faulty) -> None:
    ours = backend()
    with group.only_on(group.second):
        lost = create(ours, "lost", type="linear")
    group.second.die()
    with in_time():
        delete(ours, lost)

    assert listed_names(ours) == []


def test_a_group_whose_disks_all_fail_is_unavailable_and_its_volumes_are_never_not_found(
    backend: Make, group: Faulty
) -> None:
    ours = backend()
    one = create(ours, "one", type="linear")
    snap = snapshot(ours, "snap", one)
    group.first.die()
    group.second.die()

    asked: list[Callable[[], object]] = [
        lambda: ours.get_volume(one.handle),
        lambda: ours.find_volume("one"),
        lambda: ours.list_volumes(PageRequest()),
        lambda: ours.get_snapshot(snap.handle),
        lambda: ours.find_snapshot("snap"),
        lambda: ours.list_snapshots(PageRequest()),
        lambda: ours.volume_health(one.handle, {}),
        lambda: create(ours, "two", type="linear"),
        lambda: copy(ours, "three", snap, type="linear"),
        lambda: snapshot(ours, "snap-2", one),
        lambda: expand(ours, one, 5 * EXTENT),
        lambda: open_device(ours, one),
        lambda: ours.delete_snapshot(snap.handle, {}),
        lambda: ours.delete_volume(one.handle, {}),
        ours.check,
    ]
    for ask in asked:
        with refused(Unavailable):
            ask()
    assert ours.find_device(one.handle) is None
    ours.close_device(one.handle)
    assert storage_reasons(ours) == ["GroupUnreachable"]

    group.mend()
    assert listed_names(ours) == ["one"]
    delete(ours, snap, one)


def test_raid_works_with_one_disk_and_is_reported_degraded(backend: Make, group: Faulty) -> None:
    ours = backend()
    one = create(ours, "one", EXTENT, type="raid1")
    with opened(ours, one, block=False) as device:
        volume_steps.fill(device.path)
        before = digest(device.path)
    group.second.pull()

    with in_time(), opened(ours, one, block=False) as device:
        assert digest(device.path) == before
        device.path.write_bytes(b"x" * 4096)
        assert reasons(ours, one) == ["RaidDegraded"]
    assert [(entry.handle, entry.entries[0].reason) for entry in ours.list_volume_health(PageRequest(), {}).items] == [
        (one.handle, "RaidDegraded")
    ]
    group.mend()
    delete(ours, one)


# Reads or writes fail


@pytest.mark.parametrize("broken", ["lose_data", "refuse_data"])
def test_old_data_that_cannot_be_removed_keeps_a_volume_from_being_used(
    backend: Make, group: Faulty, broken: str
) -> None:
    ours = backend()
    with group.only_on(group.second):
        one = create(ours, "one", type="linear")
    getattr(group.second, broken)()

    for block in (False, True):
        with refused(Unavailable, "check the storage"):
            open_device(ours, one, block=block)
    ours.close_device(one.handle)
    assert group.devices() == [name for name in group.devices() if "one" not in name]

    group.mend()
    with opened(ours, one) as device:
        assert volume_steps.zeros(device.path)
    delete(ours, one)


class RecordingHost(LocalHost):
    """The real host, which records the programs that ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = 60.0) -> Result:
        self.ran.append(argv[0])
        return super().run(*argv, stdin=stdin, ok=ok, timeout=timeout)

    @property
    def formatted(self) -> bool:
        return any(program.startswith("mkfs") for program in self.ran)


class Node:
    """The node engine, with a host that records its programs."""

    def __init__(self, backend: LvmBackend, directory: Path) -> None:
        self.host = RecordingHost()
        self._backend = backend
        self.staging = directory / "staging"
        self.staging.mkdir()

    def stage(self, one: Volume) -> None:
        stage.stage(self.host, self._backend, StageRequest(handle=one.handle, staging=self.staging, capability=EXT4))

    def unstage(self, one: Volume) -> None:
        unstage.unstage(self.host, self._backend, one.handle, self.staging)

    @contextmanager
    def staged(self, one: Volume) -> Iterator[Path]:
        """Stage the volume for the block, and return a file on it."""
        self.stage(one)
        try:
            yield self.staging / "file"
        finally:
            self.unstage(one)


@pytest.fixture
def node(backend: Make, tmp_path: Path) -> Node:
    return Node(backend(), tmp_path)


def test_a_blank_volume_that_cannot_be_read_is_not_formatted(backend: Make, group: Faulty, node: Node) -> None:
    ours, disk = backend(), group.second
    with group.only_on(disk):
        one = create(ours, "one", type="linear")
    with opened(ours, one, block=False):
        pass  # scrubbed
    disk.lose_data()

    with refused(Unavailable, "nothing was written to it"):
        node.stage(one)
    assert not node.host.formatted
    node.unstage(one)

    disk.mend()
    with node.staged(one) as file:
        file.write_text(TEXT)
    delete(ours, one)


@pytest.mark.parametrize("fails", ["before it is staged", "while it is staged"])
def test_a_thin_volume_of_a_pool_that_cannot_be_read_is_not_formatted(
    backend: Make, group: Faulty, node: Node, fails: str
) -> None:
    """The kernel goes on refusing a pool that failed, until it is started anew: the next stage does that.

    The kernel writes a pool's metadata up to a second after the pool was used. Only what is written by then lets a
    stage come as far as the volume; else the pool itself cannot be started.
    """
    ours = backend()
    one = create(ours, "one", type="thin")
    with opened(ours, one, block=False) as device:
        device.path.write_bytes(bytes(MIB))  # an unallocated block is read as zeros, even if the disk fails
    if fails == "while it is staged":
        time.sleep(COMMIT)
    group.first.lose_data()
    if fails == "before it is staged":
        time.sleep(COMMIT)

    with refused(Unavailable):
        node.stage(one)
    assert not node.host.formatted
    node.unstage(one)

    group.mend()
    with refused(FailedPrecondition, "erase it by hand with blkdiscard"):
        node.stage(one)  # zeros are data, too: the driver did not write them
    with opened(ours, one, block=False) as device:
        LocalHost().run("blkdiscard", str(device.path))
    with node.staged(one) as file:
        file.write_text(TEXT)
    delete(ours, one)
    group.lvm.run("lvchange", "-qq", "-y", "-ay", f"{group.name}/{group.pool}")  # as other tests found it


def test_a_disk_that_refuses_writes_is_formatted_by_the_call_after_its_repair(
    backend: Make, group: Faulty, node: Node
) -> None:
    ours = backend()
    with group.only_on(group.second):
        one = create(ours, "one", type="linear")
    with opened(ours, one, block=False):
        pass  # scrubbed
    group.second.refuse_data()

    with refused(CommandFailed, "mkfs"):
        node.stage(one)
    assert mounts.at(node.staging) is None
    node.unstage(one)

    group.mend()
    with node.staged(one) as file:
        file.write_text(TEXT)
    with node.staged(one) as file:
        assert file.read_text() == TEXT
    delete(ours, one)


@pytest.mark.parametrize(("broken", "kind"), [("lose_data", Unavailable), ("refuse_data", FailedPrecondition)])
def test_a_volume_with_data_survives_a_failure_of_its_disk(
    backend: Make, group: Faulty, node: Node, broken: str, kind: type[StorageError]
) -> None:
    ours = backend()
    with group.only_on(group.second):
        one = create(ours, "one", type="linear")
    with node.staged(one) as file:
        file.write_text(TEXT)
    node.host.ran.clear()
    getattr(group.second, broken)()

    with refused(kind):
        node.stage(one)
    node.unstage(one)
    group.mend()
    with node.staged(one) as file:
        assert file.read_text() == TEXT
    assert not node.host.formatted
    delete(ours, one)


def digest(path: Path) -> str:
    return hashlib.sha256(read(path)).hexdigest()
