"""Backends that remember what another process has changed, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.checks import two_processes
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    NO_SECRETS,
    ExpandRequest,
    Expansion,
    Page,
    PageRequest,
    Snapshot,
    Strings,
    Volume,
    VolumeRequest,
)

from .file_backend import FileBackend, over_files


class Caching(MemoryBackend):
    """Remembers the volumes and snapshots that it has read, until it changes them itself."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.volumes: dict[str, Volume] = {}
        self.snapshots: dict[str, Snapshot] = {}

    def get_volume(self, handle: str) -> Volume:
        if handle not in self.volumes:
            self.volumes[handle] = super().get_volume(handle)
        return self.volumes[handle]

    def get_snapshot(self, handle: str) -> Snapshot:
        if handle not in self.snapshots:
            self.snapshots[handle] = super().get_snapshot(handle)
        return self.snapshots[handle]

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        self.volumes.clear()
        return super()._put(request, default)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self.volumes.clear()
        return super().expand_volume(request)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        super().delete_volume(handle, secrets)
        self.volumes.clear()

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_snapshot(handle, secrets)
        self.snapshots.clear()


class CachingLists(MemoryBackend):
    """Remembers where its volumes are attached, for the lists."""

    known: Page[Volume] | None = None

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        fresh = super().list_volumes(page)
        if self.known is None or [one.stamp for one in self.known.items] != [one.stamp for one in fresh.items]:
            self.known = fresh
        old = {one.handle: one.published_nodes for one in self.known.items}
        return replace(fresh, items=tuple(replace(one, published_nodes=old[one.handle]) for one in fresh.items))


class RewritingNotes(FileBackend):
    """Writes the record as it has read it, with each note."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.known: dict[str, Volume] = {}

    def get_volume(self, handle: str) -> Volume:
        found = super().get_volume(handle)
        self.known.setdefault(handle, found)
        return found

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        super().formatted(handle)
        self._write(self._entry("volumes", handle) / "record", self.known.get(handle) or self.get_volume(handle))


BROKEN = [
    (
        two_processes.what_another_process_does_to_a_volume_is_seen_at_once,
        Caching,
        "expand_volume, then get_volume of a process that has read it before",
    ),
    (two_processes.what_another_process_attaches_is_seen_at_once, Caching, "attach, then get_volume of a process"),
    (two_processes.what_another_process_attaches_is_seen_at_once, CachingLists, "attach, then list_volumes of a"),
    (
        two_processes.what_another_process_does_to_a_snapshot_is_seen_at_once,
        Caching,
        "delete_snapshot, then get_snapshot of a process that has read it before",
    ),
    (
        two_processes.a_format_note_keeps_what_another_process_has_changed,
        over_files(RewritingNotes),
        "formatted in another process, then get_volume",
    ),
]


pytestmark = pytest.mark.root


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_backend_that_reads_what_there_is_passes(judged: Any) -> None:
    for check in dict.fromkeys(check for check, *_ in BROKEN):
        kind = over_files(FileBackend) if "format" in check.__name__ else MemoryBackend
        outcome = judged(check, kind)
        assert outcome.state.value == "passed", outcome.text
