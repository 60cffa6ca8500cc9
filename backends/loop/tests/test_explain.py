"""A dry run reports what a creation does, and changes nothing."""

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
from csi_multi_loop.explain import DryRunClient, dry_run_freeze

from csi_multi.contract import DryRunReport, ResourceExhausted, Unpredictable, Volume, VolumeRequest
from csi_multi.host import loopfile
from csi_multi.host.loopdev import bound_devices

from .conftest import MIB, Requests

Connect = Callable[..., LoopBackend]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {
    f"os.{name}": name for name in ("mkdir", "rename", "truncate", "remove", "rmdir", "chmod", "link", "symlink")
}


class KernelChanges(threading.local):
    """What this thread asks the kernel to change, recorded by Python's audit hook."""

    events: list[tuple[str, str]] | None = None

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.events is None:
            return
        if event in CHANGES:
            self.events.append((CHANGES[event], str(args[0])))
        elif event == "open" and isinstance(args[2], int) and args[2] & WRITING:
            self.events.append(("write", str(args[0])))


KERNEL_CHANGES = KernelChanges()
sys.addaudithook(KERNEL_CHANGES.hook)


@contextmanager
def recorded_changes() -> Iterator[list[tuple[str, str]]]:
    KERNEL_CHANGES.events = []
    try:
        yield KERNEL_CHANGES.events
    finally:
        KERNEL_CHANGES.events = None


def reported_changes(report: DryRunReport) -> list[tuple[str, str]]:
    """Return the reported steps as the kernel's calls."""
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


def comparable_changes(events: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the recorded changes as a report names them: a file is written as a whole, reflinks are tried out on
    samples, and the instance's own directories are created again.
    """
    own = [("mkdir", name) for name in ("volumes", "snapshots")]
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


def file_states(directory: Path) -> list[tuple[str, int, int, int]]:
    """Return all files with what a change of them would change."""
    found = [(path, path.lstat()) for path in sorted(directory.rglob("*"))]
    return [(str(path), one.st_mtime_ns, one.st_ctime_ns, one.st_size) for path, one in found]


def create(backend: LoopBackend, request: VolumeRequest) -> Volume:
    return backend.create_volume(request)


def restore(backend: LoopBackend, request: VolumeRequest) -> Volume:
    return backend.restore_volume(request)


def clone(backend: LoopBackend, request: VolumeRequest) -> Volume:
    return backend.clone_volume(request)


@pytest.fixture
def cases(backend: LoopBackend, requests: Requests) -> dict[str, tuple[Any, VolumeRequest]]:
    """A request of every kind, with the sources of the copies."""
    source = backend.create_volume(requests.volume("source")).handle
    snapshot = backend.create_snapshot(requests.snapshot("snapshot", source)).handle
    return {
        "create": (create, requests.volume("pvc-1", 10 * MIB + 1)),
        "restore": (restore, requests.copy("pvc-1", "snapshot", snapshot, 32 * MIB)),
        "clone": (clone, requests.copy("pvc-1", "volume", source)),
    }


@pytest.mark.parametrize("kind", ["create", "restore", "clone"])
def test_the_reported_steps_are_those_of_a_creation(
    backend: LoopBackend, cases: dict[str, tuple[Any, VolumeRequest]], kind: str
) -> None:
    call, request = cases[kind]
    report = DryRunReport()
    expected = call(backend.dry_run(report), request)

    with recorded_changes() as events:
        made = call(backend, request)

    assert reported_changes(report) == comparable_changes(events)
    assert made == expected


@pytest.mark.parametrize("kind", ["create", "restore", "clone"])
def test_nothing_is_changed(
    backend: LoopBackend, cases: dict[str, tuple[Any, VolumeRequest]], kind: str, tmp_path: Path
) -> None:
    call, request = cases[kind]
    before = file_states(tmp_path)

    with recorded_changes() as events:
        call(backend.dry_run(DryRunReport()), request)

    assert events == []
    assert file_states(tmp_path) == before


def test_a_directory_that_does_not_exist_yet_is_reported_and_not_created(
    connect: Connect, requests: Requests, tmp_path: Path
) -> None:
    report = DryRunReport()
    connect(tmp_path / "new" / "pool").dry_run(report).create_volume(requests.volume("pvc-1"))

    pool = str(tmp_path / "new" / "pool")
    assert [step.words for step in report.steps if step.changes][:3] == [
        ("mkdir", "-p", pool),
        ("write", f"{pool}/owner.json"),
        ("mkdir", "-p", f"{pool}/volumes"),
    ]
    assert not (tmp_path / "new").exists()


def test_what_does_not_fit_is_refused_as_a_creation_would_be(connect: Connect, requests: Requests) -> None:
    report = DryRunReport()

    with pytest.raises(ResourceExhausted, match="do not fit"):
        connect().dry_run(report).create_volume(requests.volume("pvc-1", 2**60))
    assert [step.words[:2] for step in report.steps][-1] == ("rm", "-r")


def test_offline_space_is_assumed_and_a_copy_is_unpredictable(connect: Connect, requests: Requests) -> None:
    report = DryRunReport(offline=True)
    offline = connect(Path("/no/such/directory"), require_mount=True).dry_run(report)

    assert offline.create_volume(requests.volume("pvc-1", 2**60)).size == 2**60
    assert len(report.assumed) == 3
    with pytest.raises(Unpredictable, match="not known in an offline dry run"):
        offline.clone_volume(requests.copy("pvc-2", "volume", "node-1/source"))


@pytest.mark.root
def test_a_source_in_use_is_reported_as_frozen_and_is_not_frozen(
    connect: Connect,
    requests: Requests,
    opened: Callable[..., Path],
    mount: Callable[..., Path],
    host: Any,
    tmp_path: Path,
) -> None:
    backend = connect()
    source = backend.create_volume(requests.volume("source", 32 * MIB)).handle
    device = opened(backend, source)
    host.run("mkfs.ext4", "-q", str(device))
    target = mount(device, tmp_path / "mounted")
    report = DryRunReport()

    backend.dry_run(report).clone_volume(requests.copy("pvc-1", "volume", source))

    commands = [step.words[:3] for step in report.steps if step.words[0] == "fsfreeze"]
    assert commands == [("fsfreeze", "--freeze", str(target)), ("fsfreeze", "--unfreeze", str(target))]
    (target / "file").write_text("not frozen")
    assert str(device) in {str(one) for one in bound_devices()}


def test_a_source_that_is_unmounted_meanwhile_is_not_reported_as_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopfile, "mounted", lambda _device: [])
    report = DryRunReport()

    with dry_run_freeze(report)(Path("/dev/loop9")):
        pass

    assert report.steps == []


@pytest.mark.parametrize("reflink", [True, False])
def test_a_copy_for_which_a_workload_waits_is_explained(tmp_path: Path, reflink: bool) -> None:
    report = DryRunReport()
    DryRunClient(report).copy(tmp_path / "source", tmp_path / "image", reflink=reflink)

    assert ("whatever writes to it waits until all of them are copied" in report.steps[0].why) is not reflink
