"""Volumes as files in memory: created, cloned, expanded and deleted as a whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import (
    AlreadyExists,
    Busy,
    ExpandRequest,
    NotFound,
    OpenRequest,
    OutOfRange,
    SizeRange,
    Unavailable,
)

from csi_multi_ramdisk.client import Client

MIB = 2**20


def test_a_deleted_volume_leaves_nothing(backend: Any, memory: Path, volume_request: Any) -> None:
    handle = backend.create_volume(volume_request("pvc-1")).handle

    backend.delete_volume(handle, {})

    assert os.listdir(memory) == []
    for absent in (backend.get_volume, lambda handle: backend.delete_volume(handle, {})):
        with pytest.raises(NotFound):
            absent(handle)


@pytest.mark.parametrize("source", ["", "of a volume"])
def test_a_creation_answers_although_its_volume_is_deleted_when_its_lock_ends(
    backend: Any, volume_request: Any, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    of = source and backend.create_volume(volume_request("source")).handle
    locked = Client.locked

    @contextmanager
    def deleted_afterwards(self: Client, leaf: str, *arguments: Any, **options: Any) -> Iterator[int]:
        with locked(self, leaf, *arguments, **options) as image:
            yield image
            if options.get("create"):
                self.remove(leaf)

    monkeypatch.setattr(Client, "locked", deleted_afterwards)

    made = (
        backend.create_volume(volume_request("pvc-1"))
        if not of
        else backend.clone_volume(volume_request("pvc-1", of=of))
    )

    assert made.size == MIB
    with pytest.raises(NotFound):
        backend.get_volume(made.handle)


def test_leftovers_of_a_dead_process_are_replaced_by_the_retry(backend: Any, memory: Path, volume_request: Any) -> None:
    (memory / "pvc-1.ramdisk").write_bytes(b"x" * 2 * MIB)

    with pytest.raises(NotFound):
        backend.find_volume("pvc-1")
    assert backend.create_volume(volume_request("pvc-1")).size == MIB
    assert not any((memory / "pvc-1.ramdisk").read_bytes())


def test_leftovers_without_a_retry_are_removed_at_the_next_start(
    backend: Any, memory: Path, volume_request: Any
) -> None:
    backend.create_volume(volume_request("kept"))
    (memory / "half.ramdisk").touch()
    (memory / "building.ramdisk").touch()

    with (memory / "building.ramdisk").open("rb") as another_process:
        fcntl.flock(another_process, fcntl.LOCK_EX)
        backend.resume()
        with pytest.raises(Busy):
            backend.create_volume(volume_request("building"))

    assert sorted(os.listdir(memory)) == [
        "building.ramdisk",
        "kept.ramdisk",
        "kept.ramdisk.json",
    ]


def test_a_volume_grows_and_never_shrinks(backend: Any, memory: Path, volume_request: Any) -> None:
    handle = backend.create_volume(volume_request("pvc-1")).handle

    for required, size in ((2 * MIB, 2 * MIB), (MIB, 2 * MIB)):
        assert backend.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=required))).size == size
    assert backend.get_volume(handle).size == (memory / "pvc-1.ramdisk").stat().st_blocks * 512 == 2 * MIB
    with pytest.raises(OutOfRange):
        backend.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=MIB, limit=MIB)))


def test_a_clone_has_the_bytes_of_its_source_and_may_be_larger(backend: Any, memory: Path, volume_request: Any) -> None:
    source = backend.create_volume(volume_request("source"))
    data = os.urandom(MIB)
    (memory / "source.ramdisk").write_bytes(data)

    clone = backend.clone_volume(volume_request("clone", 2 * MIB, of=source.handle))

    assert clone.size == 2 * MIB
    assert (memory / "clone.ramdisk").read_bytes() == data + bytes(MIB)
    assert backend.clone_volume(volume_request("same", 0, of=source.handle)).size == MIB
    with pytest.raises(OutOfRange):
        backend.clone_volume(volume_request("tiny", 0, limit=MIB // 2, of=source.handle))


def test_a_clone_whose_source_is_gone_leaves_nothing_not_even_of_an_earlier_try(
    backend: Any, memory: Path, volume_request: Any
) -> None:
    (memory / "clone.ramdisk").write_bytes(b"half")

    with pytest.raises(NotFound):
        backend.clone_volume(volume_request("clone", of="node-1/absent"))
    assert os.listdir(memory) == []

    (memory / "half.ramdisk").write_bytes(b"half")
    with pytest.raises(NotFound):
        backend.clone_volume(volume_request("clone", of="node-1/half"))
    assert os.listdir(memory) == ["half.ramdisk"]


@pytest.mark.parametrize("lose", [Path.unlink, lambda image: image.write_bytes(b"")], ids=["missing", "empty"])
def test_a_volume_whose_image_is_lost_is_not_made_anew_beside_its_label(
    lose: Any, backend: Any, memory: Path, volume_request: Any
) -> None:
    """A volume of size 0 would hide that its data is gone."""
    handle = backend.create_volume(volume_request("pvc-1")).handle
    lose(memory / "pvc-1.ramdisk")
    before = sorted(os.listdir(memory))

    with pytest.raises(AlreadyExists):
        backend.create_volume(volume_request("pvc-1"))
    for attempt in (
        lambda: backend.find_volume("pvc-1"),
        lambda: backend.get_volume(handle),
        lambda: backend.open_device(OpenRequest(handle=handle)),
        lambda: backend.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=2 * MIB))),
        lambda: backend.delete_volume(handle, {}),
    ):
        with pytest.raises(Unavailable, match="missing or empty; restore the image"):
            attempt()
    assert sorted(os.listdir(memory)) == before
