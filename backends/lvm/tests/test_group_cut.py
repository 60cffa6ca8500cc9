"""The members of a group are of one moment, while their volumes are written, and nobody hangs after a death."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from csi_multi_lvm import activation
from csi_multi_lvm.backend import LvmBackend
from csi_multi_testing import numbered_writes
from csi_multi_testing.numbered_writes import NumberedWrites

from csi_multi.contract import GroupSnapshot, GroupSnapshotRequest, PageRequest, Setting, Volume
from csi_multi.host import file_extents
from csi_multi.host.command import LocalHost

from .faulty import clear, resume_devices
from .group import EXTENT, MIB, Group, Lvm, volume_group
from .matrix import FULL, once
from .test_killed import busy
from .test_starts import DeadHost
from .volume_steps import Died, create, delete, open_device, snapshot, stamp

pytestmark = pytest.mark.devicemapper

CUTS = 100 if FULL else 3
STUCK = 3.0  # seconds instead of ten after which a suspended device is resumed
FILE = 2 * MIB
WIPE = {"thin": "auto", "linear": "none"}

Make = Callable[..., LvmBackend]
Place = Callable[[int], int]  # of a byte of what is written, on the device


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with volume_group(lvm, tmp_path_factory.mktemp("cut"), disks=1, size=512 * MIB, pool=256 * MIB) as group:
        yield group


@pytest.fixture(autouse=True)
def nobody_hangs(group: Group) -> Iterator[None]:
    yield
    resume_devices(group)
    clear(group)


def cut(backend: LvmBackend, name: str, *sources: Volume) -> GroupSnapshot:
    request = GroupSnapshotRequest(stamp=stamp(backend, name), sources=tuple(one.handle for one in sources))
    return backend.create_group_snapshot(request)


@contextmanager
def raw(path: Path, _directory: Path) -> Iterator[tuple[Path, Place]]:
    yield path, lambda offset: offset


@contextmanager
def ext4(path: Path, directory: Path) -> Iterator[tuple[Path, Place]]:
    """Yield a file of a mounted filesystem on the device, and where its bytes are on the device."""
    directory.mkdir()
    LocalHost().run("mkfs.ext4", "-q", "-F", str(path))
    LocalHost().run("mount", str(path), str(directory))
    try:
        file = directory / "numbers"
        file.write_bytes(os.urandom(FILE))
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        extents = file_extents.placed(descriptor, 0, FILE)
        os.close(descriptor)

        def place(offset: int) -> int:
            [extent] = [one for one in extents if one.offset <= offset < one.end]
            return extent.place + offset - extent.offset

        yield file, place
    finally:
        LocalHost().run("umount", str(directory))


def expect_one_moment(
    group: Group,
    made: GroupSnapshot,
    writes: NumberedWrites,
    places: Mapping[str, Place],
    first: int,
    last: int,
    *,
    thin: bool,
) -> None:
    """The newest writes in the members are neighbours, and no write is there without those before it."""
    handles = {member.handle: member.source for member in made.snapshots}

    def read_pieces(member: str, *pieces: tuple[int, int]) -> list[bytes]:
        name = f"{group.name}/csis-{member.rpartition('/')[2]}"
        if thin:
            group.lvm.run("lvchange", "-qq", "-ay", "-K", name)
        descriptor = os.open(f"/dev/{name}", os.O_RDONLY)
        try:
            place = places[handles[member]]
            return [os.pread(descriptor, length, place(offset)) for offset, length in pieces]
        finally:
            os.close(descriptor)
            if thin:
                group.lvm.run("lvchange", "-qq", "-an", name)

    images: Any = {source: member for member, source in handles.items()}
    writes.expect_prefix(SimpleNamespace(read_pieces=read_pieces), images, first, last, "a group")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("use", "type_"),
    [
        *once(
            pytest.param(ext4, "thin", id="filesystems-thin"),
            pytest.param(raw, "thin", id="raw block devices-thin"),
            pytest.param(ext4, "linear", id="filesystems-linear"),
        ),
        pytest.param(raw, "linear", id="raw block devices-linear"),
    ],
)
def test_volumes_in_use_are_cut_at_one_moment(
    backend_on: Make, group: Group, tmp_path: Path, caplog: pytest.LogCaptureFixture, use: Any, type_: str
) -> None:
    caplog.set_level(logging.INFO, "csi_multi_lvm.group_cut")
    ours = backend_on(group)
    volumes = [create(ours, name, 8 * EXTENT, type=type_, wipe=WIPE[type_]) for name in ("data", "log")]
    with ExitStack() as stack:
        openers, places = {}, {}
        for one in volumes:
            path = open_device(ours, one, block=use is raw).path
            written, places[one.handle] = stack.enter_context(use(path, tmp_path / one.stamp.name))
            openers[one.handle] = partial(numbered_writes._opened, written, False)
        size = 8 * EXTENT if use is raw else FILE
        writes = NumberedWrites([SimpleNamespace(handle=one.handle, size=size) for one in volumes], openers)  # type: ignore[misc]
        writes.start()
        stack.callback(writes.stop)
        for number in range(CUTS):
            first = writes.done
            made = cut(ours, f"g{number}", *volumes)
            expect_one_moment(group, made, writes, places, first, writes.begun, thin=type_ == "thin")
            ours.delete_group_snapshot(made.handle, {})
        writes.stop()
        writes.expect_no_error("the volumes")
    for one in volumes:
        ours.close_device(one.handle)
    delete(ours, *volumes)

    suspended = sorted(int(record.args[1]) for record in caplog.records if record.name.endswith("group_cut"))  # type: ignore[index, call-overload]
    assert len(suspended) == CUTS
    print(f"{type_}: {CUTS} cuts; suspended for {suspended[CUTS // 2]} ms (median), {suspended[-1]} ms (longest)")


DEATHS = {"before the cut": ("create_snap",), "in the middle": ("create_snap",), "before they go on": ("resume",)}


@pytest.mark.parametrize("moment", DEATHS)
def test_after_a_death_the_next_process_lets_volumes_go_on_and_removes_the_group(
    backend_on: Make,
    group: Group,
    tmp_path: Path,
    setting: Setting,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    monkeypatch.setattr(activation, "SUSPENSION_SECONDS", STUCK)
    ours = backend_on(group)
    one, other = (create(ours, name, 8 * EXTENT, type="thin") for name in ("one", "other"))
    with busy(ours, one, tmp_path) as writer:
        host = DeadHost("dmsetup", *DEATHS[moment], spared=int(moment == "in the middle"))
        with suppress(Died):
            cut(backend_on(group, setting=replace(setting, host=host)), "g", one, other)
        assert host.dead
        again = backend_on(group)
        assert again.list_snapshots(PageRequest()).items == ()
        again.resume()

        writer.must_continue()
        assert [name for name in group.left() if name.startswith("csis-")] == []
        made, snap = cut(again, "g", one, other), snapshot(again, "snap", one)
        writer.must_continue()
        again.delete_group_snapshot(made.handle, {})
        delete(again, snap)
    ours.close_device(one.handle)
    delete(ours, one, other)


def test_a_request_after_a_death_makes_the_group_itself(
    backend_on: Make, group: Group, tmp_path: Path, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation, "SUSPENSION_SECONDS", STUCK)
    ours = backend_on(group)
    one, other = (create(ours, name, 8 * EXTENT, type="thin") for name in ("one", "other"))
    with busy(ours, one, tmp_path) as writer:
        host = DeadHost("dmsetup", "create_snap", spared=1)
        with suppress(Died):
            cut(backend_on(group, setting=replace(setting, host=host)), "g", one, other)
        again = backend_on(group)
        made = cut(again, "g", one, other)

        writer.must_continue()
        assert len(again.list_snapshots(PageRequest()).items) == 2
        again.delete_group_snapshot(made.handle, {})
    ours.close_device(one.handle)
    delete(ours, one, other)
