"""The files of the directory: reserved, locked, synced, and only where the share is mounted."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import Busy, CommandFailed, ExpandRequest, PageRequest, SizeRange, Unavailable
from csi_multi.host.command import LocalHost

from csi_multi_filer.client import MARK, Client

MIB = 2**20


def test_all_of_its_space_is_reserved_when_it_is_made(backend: Any, share: Path, volume_request: Any) -> None:
    backend.create_volume(volume_request("pvc-1", MIB))

    assert (share / "pvc-1.filer").stat().st_blocks * 512 == MIB


def test_an_image_that_is_removed_before_it_is_locked_is_not_built_upon(
    backend: Any, share: Path, volume_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock_after_a_removal(descriptor: int, lock: int) -> None:
        (share / "pvc-1.filer").unlink()
        monkeypatch.undo()

    monkeypatch.setattr(fcntl, "flock", flock_after_a_removal)

    with pytest.raises(Busy):
        backend.create_volume(volume_request("pvc-1"))
    assert backend.create_volume(volume_request("pvc-1"))


def test_a_directory_without_the_mark_is_no_share(tmp_path: Path, connect: Any, volume_request: Any) -> None:
    unmounted = connect(tmp_path)

    for attempt in (
        unmounted.check,
        unmounted.resume,
        lambda: unmounted.create_volume(volume_request("pvc-1")),
        lambda: unmounted.find_volume("pvc-1"),
        lambda: unmounted.list_volumes(PageRequest()),
    ):
        with pytest.raises(Unavailable, match="mount the share there"):
            attempt()
    assert os.listdir(tmp_path) == []


def unmounting(share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the share be gone after the first look at it: its path leads to the directory below."""
    look = Client._refuse_unmounted

    def looked(client: Client, directory: int) -> None:
        monkeypatch.undo()
        look(client, directory)
        share.rename(share.with_name(f"{share.name}-unmounted"))
        share.mkdir()

    monkeypatch.setattr(Client, "_refuse_unmounted", looked)


def test_what_is_done_while_the_share_is_unmounted_counts_for_nothing(
    backend: Any, share: Path, volume_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is an empty directory below taken for the share, nor is a volume said to be there that is in it."""
    for attempt in (
        lambda: backend.get_volume("pvc-1"),
        lambda: backend.list_volumes(PageRequest()),
        lambda: backend.create_volume(volume_request("pvc-1")),
    ):
        unmounting(share, monkeypatch)
        with pytest.raises(Unavailable, match="was unmounted meanwhile"):
            attempt()
        shutil.rmtree(share)
        share.with_name(f"{share.name}-unmounted").rename(share)
    assert os.listdir(share) == [MARK]


@pytest.mark.root
def test_a_share_cannot_be_unmounted_while_it_is_changed(small_share: Path) -> None:
    umount = ("umount", str(small_share))

    with Client(str(small_share)).connected("testing"), pytest.raises(CommandFailed, match="busy"):
        LocalHost().run(*umount)


def test_an_image_that_another_process_removed_is_not_used_although_nfs_keeps_it_under_another_name(
    backend: Any, share: Path, volume_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = backend.create_volume(volume_request("pvc-1")).handle

    def flock_after_a_removal(descriptor: int, lock: int) -> None:
        (share / "pvc-1.filer").rename(share / ".nfs0001")
        monkeypatch.undo()

    monkeypatch.setattr(fcntl, "flock", flock_after_a_removal)

    with pytest.raises(Busy):
        backend.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=2 * MIB)))
    assert (share / ".nfs0001").stat().st_size == MIB


def test_a_holder_is_looked_up_at_the_server(backend: Any, share: Path, volume_request: Any) -> None:
    """An NFS client answers from memory that a file is not there, unless the file shall be made."""
    backend.create_volume(volume_request("pvc-1"))
    (share / "pvc-1.filer.open").unlink()

    assert backend._client.holder("pvc-1") == ""
    assert (share / "pvc-1.filer.open").read_bytes() == b"", "it was opened with O_CREAT"


def test_a_volume_is_synced_before_it_exists(
    backend: Any, share: Path, volume_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        events.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        sync(descriptor)

    def renamed(path: Path, name: Path) -> Path:
        events.append(f"rename {path.name}")
        return replace(path, name)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    backend.create_volume(volume_request("pvc-1"))

    draft, directory = "pvc-1.filer.json.new", f"sync {share.name}"
    assert events == [f"sync {draft}", directory, "sync pvc-1.filer", f"rename {draft}", directory]
