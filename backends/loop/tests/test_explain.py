"""What `csi-multi explain` tells of a creation is what a creation does, and it changes nothing."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from csi_multi_loop.backend import LoopBackend

from csi_multi.contract import DryRunReport, ResourceExhausted, Unpredictable, Volume, VolumeRequest
from csi_multi.host.loopdev import bound

from .conftest import MIB, Requests

Make = Callable[..., LoopBackend]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {
    f"os.{name}": name for name in ("mkdir", "rename", "truncate", "remove", "rmdir", "chmod", "link", "symlink")
}


class Watched(threading.local):
    """What this thread asks the kernel to change, noted where Python itself makes the call."""

    events: list[tuple[str, str]] | None = None

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.events is None:
            return
        if event in CHANGES:
            self.events.append((CHANGES[event], str(args[0])))
        elif event == "open" and isinstance(args[2], int) and args[2] & WRITING:
            self.events.append(("write", str(args[0])))


WATCHED = Watched()
sys.addaudithook(WATCHED.hook)


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    WATCHED.events = []
    try:
        yield WATCHED.events
    finally:
        WATCHED.events = None


def told(report: DryRunReport) -> list[tuple[str, str]]:
    """Return the steps in the words of the kernel's calls."""
    called = {
        "mkdir": "mkdir",
        "mv": "rename",
        "truncate": "truncate",
        "write": "write",
        "touch": "write",
        "cp": "write",
        "ln": "link",
    }
    path = {"mv": -2, "write": 1, "cp": -1, "ln": 1}
    return [
        (called[step.words[0]], step.words[path.get(step.words[0], -1)])
        for step in report.steps
        if step.changes and step.words[0] != "sync"
    ]


def done(events: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what was done in the words of the steps: a file is written as a whole, sharing is tried on samples,
    and the instance's own directories are asked for again.
    """
    own = [("mkdir", name) for name in ("volumes", "snapshots", "frozen")]
    named = [(call, path.replace("/.volume.json.new", "/volume.json")) for call, path in events]
    tried = ("/sample", "/probe")
    return [
        (call, path)
        for call, path in named
        if not path.endswith(tried)
        and not path.isdecimal()  # a descriptor: of the image that was written a line before
        and (call, Path(path).name) not in own
        and not (call == "rename" and path.endswith("volume.json"))
    ]


def tree(directory: Path) -> list[tuple[str, int, int, int]]:
    """Return all files with what would tell of a change."""
    found = [(path, path.lstat()) for path in sorted(directory.rglob("*"))]
    return [(str(path), one.st_mtime_ns, one.st_ctime_ns, one.st_size) for path, one in found]


def create(backend: LoopBackend, request: VolumeRequest) -> Volume:
    return backend.create_volume(request)


def restore(backend: LoopBackend, request: VolumeRequest) -> Volume:
    return backend.restore_volume(request)


def clone(backend: LoopBackend, request: VolumeRequest) -> Volume:
    return backend.clone_volume(request)


@pytest.fixture
def cases(backend: LoopBackend, ask: Requests) -> dict[str, tuple[Any, VolumeRequest]]:
    """A request of every kind; what they are copied from is there."""
    source = backend.create_volume(ask.volume("source")).handle
    snapshot = backend.create_snapshot(ask.snapshot("snapshot", source)).handle
    return {
        "create": (create, ask.volume("pvc-1", 10 * MIB + 1)),
        "restore": (restore, ask.copy("pvc-1", "snapshot", snapshot, 32 * MIB)),
        "clone": (clone, ask.copy("pvc-1", "volume", source)),
    }


@pytest.mark.parametrize("kind", ["create", "restore", "clone"])
def test_the_steps_that_are_told_are_those_of_a_creation(
    backend: LoopBackend, cases: dict[str, tuple[Any, VolumeRequest]], kind: str
) -> None:
    call, request = cases[kind]
    report = DryRunReport()
    expected = call(backend.dry_run(report), request)

    with watched() as events:
        made = call(backend, request)

    assert told(report) == done(events)
    assert made == expected


@pytest.mark.parametrize("kind", ["create", "restore", "clone"])
def test_nothing_is_changed(
    backend: LoopBackend, cases: dict[str, tuple[Any, VolumeRequest]], kind: str, tmp_path: Path
) -> None:
    call, request = cases[kind]
    before = tree(tmp_path)

    with watched() as events:
        call(backend.dry_run(DryRunReport()), request)

    assert events == []
    assert tree(tmp_path) == before


def test_a_directory_that_is_not_there_yet_is_told_and_not_made(make: Make, ask: Requests, tmp_path: Path) -> None:
    report = DryRunReport()
    make(tmp_path / "new" / "pool").dry_run(report).create_volume(ask.volume("pvc-1"))

    assert report.steps[0].words == ("mkdir", "-p", str(tmp_path / "new" / "pool" / "volumes"))
    assert not (tmp_path / "new").exists()


def test_what_does_not_fit_is_refused_as_a_creation_would_be(make: Make, ask: Requests) -> None:
    report = DryRunReport()

    with pytest.raises(ResourceExhausted, match="do not fit"):
        make().dry_run(report).create_volume(ask.volume("pvc-1", 2**60))
    assert [step.words[:2] for step in report.steps][-1] == ("rm", "-r")


def test_without_the_storage_room_is_assumed_and_a_copy_cannot_be_told(make: Make, ask: Requests) -> None:
    report = DryRunReport(offline=True)
    away = make(Path("/no/such/place"), require_mount=True).dry_run(report)

    assert away.create_volume(ask.volume("pvc-1", 2**60)).size == 2**60
    assert len(report.assumed) == 3
    with pytest.raises(Unpredictable, match="not known without the storage"):
        away.clone_volume(ask.copy("pvc-2", "volume", "node-1/source"))


@pytest.mark.root
def test_a_source_that_is_in_use_is_told_to_be_frozen_and_is_not(
    make: Make,
    ask: Requests,
    opened: Callable[..., Path],
    mount: Callable[..., Path],
    host: Any,
    tmp_path: Path,
) -> None:
    backend = make()
    source = backend.create_volume(ask.volume("source", 32 * MIB)).handle
    device = opened(backend, source)
    host.run("mkfs.ext4", "-q", str(device))
    place = mount(device, tmp_path / "mounted")
    report = DryRunReport()

    backend.dry_run(report).clone_volume(ask.copy("pvc-1", "volume", source))

    commands = [step.words[:3] for step in report.steps if step.words[0] == "fsfreeze"]
    assert commands == [("fsfreeze", "--freeze", str(place)), ("fsfreeze", "--unfreeze", str(place))]
    (place / "file").write_text("nobody waits")
    assert str(device) in {str(one) for one in bound()}
