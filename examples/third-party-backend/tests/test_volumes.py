"""Volumes as files in memory: whole or not there, ours or left alone."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from csi_multi_ramdisk.backend import RamdiskBackend
from csi_multi_ramdisk.store import Store

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    CapacityRequest,
    ExpandRequest,
    FailedPrecondition,
    InvalidToken,
    NotFound,
    OutOfRange,
    PageRequest,
    ResourceExhausted,
    SizeRange,
    Unavailable,
    WrongNode,
)

MIB = 2**20


def test_a_volume_is_there_for_every_later_process(
    backend: RamdiskBackend, memory: Path, connect: Any, wish: Any
) -> None:
    made = backend.create_volume(wish("pvc-1", MIB - 1))

    assert made.size == MIB, "rounded up to whole pages"
    assert made.stamp == wish("pvc-1").stamp
    assert connect(memory).get_volume(made.handle) == connect(memory).find_volume("pvc-1") == made
    with pytest.raises(AlreadyExists):
        backend.create_volume(wish("pvc-1"))


def test_all_of_its_memory_is_reserved_when_it_is_made(backend: RamdiskBackend, memory: Path, wish: Any) -> None:
    backend.create_volume(wish("pvc-1", MIB))

    assert (memory / "pvc-1.ramdisk").stat().st_blocks * 512 == MIB


def test_a_deleted_volume_leaves_nothing(backend: RamdiskBackend, memory: Path, wish: Any) -> None:
    handle = backend.create_volume(wish("pvc-1")).handle

    backend.delete_volume(handle, {})

    assert os.listdir(memory) == []
    for absent in (backend.get_volume, lambda handle: backend.delete_volume(handle, {})):
        with pytest.raises(NotFound):
            absent(handle)


@pytest.mark.parametrize("handle", ["", "node-1", "node-1/", "node-1/../x", "node-1/A", "node-1/" + "x" * 99, "\0/a"])
def test_a_handle_that_was_never_made_here_is_not_found(handle: str, backend: RamdiskBackend) -> None:
    with pytest.raises(NotFound):
        backend.get_volume(handle)


def test_a_handle_does_not_lead_out_of_the_directory(memory: Path, connect: Any, wish: Any) -> None:
    connect(memory).create_volume(wish("pvc-1"))
    (memory / "below").mkdir()

    with pytest.raises(NotFound):
        connect(memory / "below").get_volume("node-1/../pvc-1")


def test_a_volume_of_another_node_is_not_taken_for_gone(backend: RamdiskBackend) -> None:
    with pytest.raises(WrongNode):
        backend.delete_volume("node-2/pvc-1", {})


@pytest.mark.parametrize("other", [{"driver": "other.example.com"}, {"cluster": "other"}])
def test_a_volume_of_another_driver_or_cluster_is_neither_listed_nor_touched(
    other: dict[str, str], memory: Path, connect: Any, wish: Any
) -> None:
    handle = connect(memory).create_volume(wish("pvc-1")).handle
    stranger = connect(memory, **other)

    assert stranger.list_volumes(PageRequest()).items == ()
    for act in (
        lambda: stranger.delete_volume(handle, {}),
        lambda: stranger.clone_volume(wish("copy", of=handle)),
        lambda: stranger.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=2 * MIB))),
    ):
        with pytest.raises(FailedPrecondition, match="give each its own directory"):
            act()
    with pytest.raises(AlreadyExists):
        stranger.create_volume(wish("pvc-1"))
    stranger.resume()
    assert connect(memory).get_volume(handle)


def test_files_of_others_are_neither_listed_nor_touched(backend: RamdiskBackend, memory: Path, wish: Any) -> None:
    names = ["notes.txt", "Upper.ramdisk", "pvc-1.json", "odd.ramdisk.bak"]
    for name in names:
        (memory / name).write_text("mine")

    backend.resume()
    volume = backend.create_volume(wish("pvc-1"))
    assert backend.list_volumes(PageRequest()).items == (volume,)
    backend.delete_volume(volume.handle, {})

    assert {name: (memory / name).read_text() for name in os.listdir(memory)} == dict.fromkeys(names, "mine")


def test_what_a_dead_process_left_is_built_anew_by_the_retry(backend: RamdiskBackend, memory: Path, wish: Any) -> None:
    (memory / "pvc-1.ramdisk").write_bytes(b"x" * 2 * MIB)

    with pytest.raises(NotFound):
        backend.find_volume("pvc-1")
    assert backend.create_volume(wish("pvc-1")).size == MIB
    assert not any((memory / "pvc-1.ramdisk").read_bytes())


def test_what_nobody_retries_is_removed_at_the_next_start(backend: RamdiskBackend, memory: Path, wish: Any) -> None:
    backend.create_volume(wish("kept"))
    (memory / "half.ramdisk").touch()
    (memory / "building.ramdisk").touch()

    with (memory / "building.ramdisk").open("rb") as another_process:
        fcntl.flock(another_process, fcntl.LOCK_EX)
        backend.resume()
        with pytest.raises(Busy):
            backend.create_volume(wish("building"))

    assert sorted(os.listdir(memory)) == ["building.ramdisk", "kept.ramdisk", "kept.ramdisk.json"]


def test_a_half_deleted_volume_is_no_volume_and_gone_after_the_retry(
    backend: RamdiskBackend, memory: Path, wish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = backend.create_volume(wish("pvc-1")).handle
    (memory / "pvc-1.ramdisk.json.new").touch()  # of a note that was interrupted
    unlink = Path.unlink
    removed: list[Path] = []

    def failing(path: Path, **words: Any) -> None:
        if removed:
            raise OSError(errno.EIO, "no more")
        removed.append(path)
        unlink(path, **words)

    monkeypatch.setattr(Path, "unlink", failing)
    with pytest.raises(Unavailable):
        backend.delete_volume(handle, {})
    monkeypatch.undo()

    with pytest.raises(NotFound):
        backend.get_volume(handle)
    backend.delete_volume(handle, {})

    assert os.listdir(memory) == []


def test_an_image_that_is_removed_before_it_is_locked_is_not_built_upon(
    backend: RamdiskBackend, memory: Path, wish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock_after_a_removal(descriptor: int, lock: int) -> None:
        (memory / "pvc-1.ramdisk").unlink()
        monkeypatch.undo()

    monkeypatch.setattr(fcntl, "flock", flock_after_a_removal)

    with pytest.raises(Busy):
        backend.create_volume(wish("pvc-1"))
    assert backend.create_volume(wish("pvc-1"))


def test_a_record_that_cannot_be_read_is_not_an_empty_place(backend: RamdiskBackend, memory: Path, wish: Any) -> None:
    handle = backend.create_volume(wish("pvc-1")).handle
    (memory / "pvc-1.ramdisk.json").write_text("{")

    for act in (lambda: backend.create_volume(wish("pvc-1")), lambda: backend.delete_volume(handle, {})):
        with pytest.raises(FailedPrecondition, match="is damaged"):
            act()
    backend.resume()
    assert (memory / "pvc-1.ramdisk").stat().st_size == MIB


def test_pages_are_in_order_and_survive_the_removal_of_what_they_ended_with(backend: RamdiskBackend, wish: Any) -> None:
    handles = [backend.create_volume(wish(f"pvc-{number}")).handle for number in (3, 1, 2)]

    first = backend.list_volumes(PageRequest(limit=2))
    backend.delete_volume(first.items[-1].handle, {})
    second = backend.list_volumes(PageRequest(cursor=first.cursor, limit=2))

    assert [one.handle for one in first.items + second.items] == sorted(handles)
    assert second.cursor == ""
    with pytest.raises(InvalidToken):
        backend.list_volumes(PageRequest(cursor="../x"))


def test_a_volume_grows_and_never_shrinks(backend: RamdiskBackend, memory: Path, wish: Any) -> None:
    handle = backend.create_volume(wish("pvc-1")).handle

    for required, size in ((2 * MIB, 2 * MIB), (MIB, 2 * MIB)):
        assert backend.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=required))).size == size
    assert backend.get_volume(handle).size == (memory / "pvc-1.ramdisk").stat().st_blocks * 512 == 2 * MIB
    with pytest.raises(OutOfRange):
        backend.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=MIB, limit=MIB)))


def test_a_clone_has_the_bytes_of_its_source_and_may_be_larger(
    backend: RamdiskBackend, memory: Path, wish: Any
) -> None:
    source = backend.create_volume(wish("source"))
    data = os.urandom(MIB)
    (memory / "source.ramdisk").write_bytes(data)

    clone = backend.clone_volume(wish("clone", 2 * MIB, of=source.handle))

    assert clone.size == 2 * MIB
    assert (memory / "clone.ramdisk").read_bytes() == data + bytes(MIB)
    assert backend.clone_volume(wish("same", 0, of=source.handle)).size == MIB
    with pytest.raises(OutOfRange):
        backend.clone_volume(wish("tiny", 0, limit=MIB // 2, of=source.handle))


def test_a_clone_whose_source_is_gone_leaves_nothing_not_even_of_an_earlier_try(
    backend: RamdiskBackend, memory: Path, wish: Any
) -> None:
    (memory / "clone.ramdisk").write_bytes(b"half")

    with pytest.raises(NotFound):
        backend.clone_volume(wish("clone", of="node-1/absent"))
    assert os.listdir(memory) == []

    (memory / "half.ramdisk").write_bytes(b"half")
    with pytest.raises(NotFound):
        backend.clone_volume(wish("clone", of="node-1/half"))
    assert os.listdir(memory) == ["half.ramdisk"]


def test_a_directory_on_disk_is_refused_with_the_remedy(tmp_path: Path, connect: Any, wish: Any) -> None:
    disk = connect(tmp_path)

    for act in (disk.check, disk.resume, lambda: disk.create_volume(wish("pvc-1")), lambda: disk.find_volume("pvc-1")):
        with pytest.raises(Unavailable, match="mount -t tmpfs"):
            act()
    with pytest.raises(Unavailable, match="No such file"):
        connect(tmp_path / "absent").check()
    assert os.listdir(tmp_path) == []


@pytest.mark.root
def test_the_capacity_is_what_can_be_made_and_what_is_full_says_so(small: Path, connect: Any, wish: Any) -> None:
    backend = connect(small)
    source = backend.create_volume(wish("source", MIB)).handle
    room = backend.capacity(CapacityRequest()).available

    assert 6 * MIB < room < 7 * MIB
    with pytest.raises(ResourceExhausted):
        backend.create_volume(wish("larger", room + 1))
    backend.create_volume(wish("exact", room))
    assert backend.capacity(CapacityRequest()).available == 0
    for act in (
        lambda: backend.create_volume(wish("more", 4096)),
        lambda: backend.clone_volume(wish("copy", of=source)),
        lambda: backend.expand_volume(ExpandRequest(handle=source, size=SizeRange(required=2 * MIB))),
    ):
        with pytest.raises(ResourceExhausted):
            act()
    backend.formatting(source)  # there is always room for a note
    assert sorted({name.partition(".")[0] for name in os.listdir(small)}) == ["exact", "source"]
    assert backend.get_volume(source).size == MIB


@pytest.mark.root
def test_who_comes_second_to_the_last_memory_is_told_that_it_is_full(
    small: Path, connect: Any, wish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "room", lambda _: 100 * MIB)  # as seen before somebody else took it

    with pytest.raises(ResourceExhausted):
        connect(small).create_volume(wish("pvc-1", 16 * MIB))

    assert os.listdir(small) == []


@pytest.mark.root
def test_a_tmpfs_without_a_limit_is_refused(small: Path, connect: Any) -> None:
    from csi_multi.host.command import LocalHost

    LocalHost().run("mount", "-o", "remount,size=0", str(small))

    with pytest.raises(Unavailable, match="with a size limit"):
        connect(small).check()
