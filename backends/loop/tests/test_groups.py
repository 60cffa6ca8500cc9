"""Groups of snapshots: all members or none, after crashes at any point, kills, and on a full filesystem."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    CapacityRequest,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PageRequest,
    ResourceExhausted,
)
from csi_multi.core import idempotent
from csi_multi.node import freeze_notes, frozen_leftovers

from .conftest import MIB, digest, write


@pytest.fixture
def volumes(backend, requests, image):
    """Two volumes with different data."""
    handles = []
    for number, name in enumerate(("data", "log")):
        handles.append(backend.create_volume(requests.volume(name, 16 * MIB)).handle)
        write(image(backend, handles[-1]), seed=number)
    return handles


def shown(backend):
    return [one.handle for one in backend.list_snapshots(PageRequest()).items]


def test_a_group_is_listed_read_restored_and_deleted_with_its_members(backend, requests, image, volumes, leftovers):
    before = [digest(image(backend, handle)) for handle in volumes]
    group = backend.create_group_snapshot(requests.group("g", *volumes))
    write(image(backend, volumes[0]), seed=7)
    members = [one.handle for one in group.snapshots]
    copies = [backend.restore_volume(requests.copy(f"r{n}", "snapshot", one)) for n, one in enumerate(members)]

    assert [digest(image(backend, one.handle)) for one in copies] == before
    assert backend.get_group_snapshot(group.handle) == backend.find_group_snapshot("g") == group
    assert [backend.get_snapshot(one) for one in members] == list(group.snapshots)
    assert sorted(shown(backend)) == sorted(members)
    assert {one.group for one in backend.list_snapshots(PageRequest()).items} == {group.handle}
    assert leftovers(backend) == []
    backend.delete_group_snapshot(group.handle, {})
    assert shown(backend) == []
    assert os.listdir(Path(backend.config.directory) / "groups") == []
    with pytest.raises(NotFound):
        backend.delete_group_snapshot(group.handle, {})


def test_a_member_is_deleted_with_its_group_only(backend, requests, volumes):
    group = backend.create_group_snapshot(requests.group("g", *volumes))

    with pytest.raises(InvalidArgument, match="delete the group"):
        backend.delete_snapshot(group.snapshots[0].handle, {})
    assert backend.get_group_snapshot(group.handle) == group


def test_snapshots_and_groups_of_one_name_do_not_disturb_each_other(backend, requests, volumes):
    group = backend.create_group_snapshot(requests.group("g", *volumes))
    snapshot = backend.create_snapshot(requests.snapshot("g", volumes[0]))
    backend.delete_group_snapshot(group.handle, {})

    assert backend.get_snapshot(snapshot.handle) == snapshot
    backend.create_group_snapshot(requests.group("g", *volumes))
    backend.delete_snapshot(snapshot.handle, {})
    assert len(shown(backend)) == 2


def test_a_repeated_request_gets_the_group_of_the_answer_that_was_lost(backend, requests, volumes):
    made = backend.create_group_snapshot(requests.group("g", *volumes))
    backend.delete_volume(volumes[1], {})

    assert idempotent.create_group_snapshot(backend, requests.group("g", *reversed(volumes))) == made
    with pytest.raises(AlreadyExists, match="other volumes"):
        idempotent.create_group_snapshot(backend, requests.group("g", volumes[0]))


def test_a_group_with_a_member_that_does_not_fit_is_not_made_at_all(connect, requests, image, leftovers, disk):
    backend = connect()
    volumes = [backend.create_volume(requests.volume(name, 16 * MIB)).handle for name in ("data", "log")]
    for handle in volumes:
        image(backend, handle).write_bytes(os.urandom(16 * MIB))
    disk.free = 24 * MIB  # enough for one of two copies

    with pytest.raises(ResourceExhausted):
        backend.create_group_snapshot(requests.group("g", *volumes))
    assert leftovers(backend) == []
    assert shown(backend) == []


def test_the_members_of_a_group_count(backend, requests, volumes):
    before = backend.capacity(CapacityRequest()).available
    single = backend.create_snapshot(requests.snapshot("s", volumes[0]))
    one = before - backend.capacity(CapacityRequest()).available
    backend.delete_snapshot(single.handle, {})
    backend.create_group_snapshot(requests.group("g", *volumes))

    assert one > 0
    assert before - backend.capacity(CapacityRequest()).available >= 2 * one


def test_a_creation_that_died_anywhere_made_all_or_nothing(connect, crash, requests, volumes, leftovers):
    """The kit repeats such requests; here they are not."""
    states = set()

    def prepare(call):
        backend = connect()
        backend.resume()
        return lambda: backend.create_group_snapshot(requests.group(f"g{call}", *volumes))

    for call in crash.points(prepare):
        backend = connect()
        states.add(len(shown(backend)))
        made = None
        with contextlib.suppress(NotFound):
            made = backend.find_group_snapshot(f"g{call}")
        assert len(shown(backend)) == (2 if made else 0)
        backend.check()
        assert leftovers(backend) == []
        assert len(shown(backend)) == (2 if made else 0)
        if made:
            backend.delete_group_snapshot(made.handle, {})
        assert shown(backend) == []
    assert states == {0, 2}


def test_a_deletion_that_died_anywhere_is_finished_by_the_check(connect, crash, requests, volumes, leftovers):
    states = set()

    def prepare(call):
        backend = connect()
        backend.resume()
        handle = backend.create_group_snapshot(requests.group(f"g{call}", *volumes)).handle
        return lambda: backend.delete_group_snapshot(handle, {})

    for call in crash.points(prepare):
        backend = connect()
        states.add(len(shown(backend)))
        backend.check()
        assert leftovers(backend) == []
        if shown(backend):
            backend.delete_group_snapshot(f"node-1/g{call}", {})
        assert shown(backend) == []
    assert states == {0, 2}


def test_a_member_that_is_being_copied_keeps_its_group(backend, requests, volumes, crash):
    group = backend.create_group_snapshot(requests.group("g", *volumes))
    refused = []

    def delete():
        with pytest.raises(Busy):
            backend.delete_group_snapshot(group.handle, {})
        refused.append(shown(backend))

    with crash.before("os.truncate", delete):
        backend.restore_volume(requests.copy("r", "snapshot", group.snapshots[0].handle))

    assert [len(one) for one in refused] == [2]
    assert backend.get_group_snapshot(group.handle) == group
    backend.delete_group_snapshot(group.handle, {})


def test_a_group_with_a_foreign_file_in_a_member_is_kept_whole(backend, requests, volumes):
    group = backend.create_group_snapshot(requests.group("g", *volumes))
    foreign = Path(backend.config.directory, "snapshots", group.snapshots[1].handle.partition("/")[2], "notes.txt")
    foreign.write_text("mine")

    with pytest.raises(FailedPrecondition, match="move it away"):
        backend.delete_group_snapshot(group.handle, {})
    assert backend.get_group_snapshot(group.handle) == group
    assert len(shown(backend)) == 2


def test_two_processes_that_make_one_group_make_it_once(connect, requests, volumes, leftovers):
    outcomes = []

    def make():
        try:
            outcomes.append(connect().create_group_snapshot(requests.group("g", *volumes)))
        except (Busy, AlreadyExists) as error:
            outcomes.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend = connect()
    group = idempotent.create_group_snapshot(backend, requests.group("g", *volumes))

    assert [one for one in outcomes if not isinstance(one, Exception)] in ([], [group])
    assert len(shown(backend)) == 2
    assert leftovers(backend) == []


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_on_a_filesystem_that_is_full_a_group_leaves_nothing_and_is_deleted(
    filesystem, connect, requests, image, leftovers, kind
):
    disk = filesystem(kind, memory=True)
    backend = connect(disk / "pool", overprovision=1000)
    volumes = [backend.create_volume(requests.volume(name, 4 * MIB)).handle for name in ("data", "log")]
    for handle in volumes:
        image(backend, handle).write_bytes(os.urandom(4 * MIB))
    names = [f"{number}-{'n' * 38}" for number in range(8)]
    for name in names:
        backend.create_group_snapshot(requests.group(name, *volumes))
    before = shown(backend)
    with (disk / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(os.urandom(size)) == size:
                    pass
    with contextlib.suppress(OSError):
        for number in range(100_000):
            (disk / f"filler-{number}").write_bytes(b"x" * 100)

    with contextlib.suppress(ResourceExhausted):  # or what is left is just enough
        late = backend.create_group_snapshot(requests.group("late", *volumes))
        backend.delete_group_snapshot(late.handle, {})
    assert shown(backend) == before
    assert leftovers(backend) == []
    for name in names:
        backend.delete_group_snapshot(f"node-1/{name}", {})
    assert os.listdir(disk / "pool/snapshots") == os.listdir(disk / "pool/groups") == []


CHILD = """
import os, pathlib, signal, sys
from csi_multi.contract import GroupSnapshotRequest, Setting, Stamp
from csi_multi.host.command import LocalHost
from csi_multi.node import freeze, freeze_notes, thaw
from csi_multi_loop import directory_notes
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config

directory, when, notes, *sources = sys.argv[1:]
freeze_notes.NOTES = pathlib.Path(notes)
directory_notes.NOTES = pathlib.Path(notes + "-directories")
real, calls = thaw.call_kernel, []

def call(descriptor, request):
    real(descriptor, request)
    calls.append("thaw" if request == thaw.FITHAW else "freeze")
    if calls[-1] + str(calls.count(calls[-1])) == when:
        os.kill(os.getpid(), signal.SIGKILL)

thaw.call_kernel = call
names = {"instance": "scratch", "driver": "multi.csi.test", "cluster": "c", "node": "node-1"}
setting = Setting(**names, host=LocalHost(), frozen=freeze.frozen)
backend = LoopBackend(Config(directory=directory, reserve_percent=0, min_size=4096), setting)
stamp = Stamp(driver="multi.csi.test", cluster="c", name="g", digest="d")
backend.create_group_snapshot(GroupSnapshotRequest(stamp=stamp, sources=tuple(sources)))
"""


@pytest.mark.root
@pytest.mark.parametrize("when", ["freeze1", "freeze2", "thaw1", "thaw2"])
def test_a_process_killed_in_the_cut_leaves_no_group_and_nothing_frozen(
    connect, filesystem, requests, opened, mount, host, tmp_path, leftovers, when
):
    pool = filesystem("xfs", 1024 * MIB, memory=True) / "pool"
    backend = connect(pool)
    volumes, targets = [], []
    for name in ("data", "log"):
        volumes.append(backend.create_volume(requests.volume(name, 32 * MIB)).handle)
        device = opened(backend, volumes[-1])
        host.run("mkfs.ext4", "-q", str(device))
        targets.append(mount(device, tmp_path / f"mnt-{name}"))
    command = [sys.executable, "-c", CHILD, str(pool), when, str(freeze_notes.NOTES), *volumes]
    child = subprocess.run(command, check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert shown(connect(pool)) == []
    frozen_leftovers.thaw_all(host)
    backend = connect(pool)
    backend.resume()

    for target in targets:
        (target / "probe").write_bytes(b"x")
        (target / "probe").unlink()
    assert leftovers(backend) == []
    assert len(backend.create_group_snapshot(requests.group("g", *volumes)).snapshots) == 2
