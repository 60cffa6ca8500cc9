"""Backends that take a storage that is away for an empty one, and the checks that find it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS, away
from csi_multi_testing.context import CheckContext, features_of
from csi_multi_testing.csi_wire import CsiClient
from csi_multi_testing.fault_injection import FaultInjector
from csi_multi_testing.memory import MemoryBackend, MemoryStorage
from csi_multi_testing.storage import Storage

from csi_multi.contract import (
    NO_SECRETS,
    Blank,
    CapacityReport,
    CapacityRequest,
    Device,
    HealthEntry,
    NotFound,
    OpenRequest,
    Page,
    PageRequest,
    Strings,
    Unavailable,
    Volume,
)
from csi_multi.process.driver_process import NotServing

from . import file_backend
from .file_backend import FileBackend


class Unmounted(MemoryBackend):
    """Looks into the directory below the mount, which is empty."""

    @property
    def storage(self) -> MemoryStorage:
        return MemoryStorage() if self._storage.is_away else self._storage

    @storage.setter
    def storage(self, storage: MemoryStorage) -> None:
        self._storage = storage


class Quiet(MemoryBackend):
    """Has nothing to list where nothing answers."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        try:
            return super().list_volumes(page)
        except Unavailable:
            return Page(items=())


class Full(MemoryBackend):
    """Has no space where nothing answers."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        try:
            return super().capacity(request)
        except Unavailable:
            return CapacityReport(available=0)


class Deleting(MemoryBackend):
    """What does not answer is gone."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        try:
            super().delete_volume(handle, secrets)
        except Unavailable:
            raise NotFound(f"volume {handle!r} does not exist") from None


class Well(MemoryBackend):
    """No problem is known of what does not answer."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        try:
            return super().volume_health(handle, secrets)
        except Unavailable:
            return ()


class Present(MemoryBackend):
    def check(self) -> None:
        """Do nothing: it was there a moment ago."""


class PresentOnce(MemoryBackend):
    """Asks until it has got an answer, and trusts that one for ever."""

    asked = False

    def check(self) -> None:
        if not self.asked:
            super().check()
        self.asked = True


class Marked(Unmounted):
    """Refuses a storage that is not the one it has seen; a new process has seen none."""

    seen = False

    @property
    def storage(self) -> MemoryStorage:
        if self.seen and self._storage.is_away:
            raise Unavailable("this is not the storage that was here")
        self.seen = self.seen or (bool(self._storage.volumes) and not self._storage.is_away)
        return MemoryStorage() if self._storage.is_away else self._storage

    @storage.setter
    def storage(self, storage: MemoryStorage) -> None:
        self._storage = storage


class Cleaning(MemoryBackend):
    """A process that starts removes the records of what it does not see."""

    def resume(self) -> None:
        if self._storage.is_away:
            self._storage.snapshots.clear()


class Closed(FileBackend):
    """A device whose volume is not there is closed."""

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        try:
            return super().find_device(handle)
        except Unavailable:
            return None


class Opening(FileBackend):
    """Opens the device of what is not there, to fail with the first read."""

    def open_device(self, request: OpenRequest) -> Device:
        if self.root.exists():
            return super().open_device(request)
        return Device(path=self.root / request.handle, number="0:0", proof={}, blank=Blank.NEVER)


class Cached(MemoryBackend):
    """Answers with a capacity that was read a moment ago, where nothing answers. Correct."""

    last: CapacityReport | None = None

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        try:
            self.last = super().capacity(request)
        except Unavailable:
            if self.last is None:
                raise
        return self.last


class Unlimited(MemoryBackend):
    """Promises its space any number of times. Correct."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=1 << 40)


class Unwritten(FileBackend):
    """Nothing is written where nothing is."""

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        return handle in self.storage_root()

    def storage_root(self) -> list[str]:
        return [one.name for one in self.root.iterdir()] if self.root.exists() else []


BROKEN = [
    (away.a_storage_that_is_away_is_never_taken_for_empty, Unmounted, "get_volume raised NotFound"),
    (away.a_storage_that_is_away_is_never_taken_for_empty, Unmounted, "list_snapshots answered []"),
    (away.a_storage_that_is_away_is_never_taken_for_empty, Unmounted, "delete_volume answered None"),
    (away.a_storage_that_is_away_is_never_taken_for_empty, Unmounted, "create_volume answered Volume("),
    (away.a_storage_that_is_away_is_never_taken_for_empty, Quiet, "list_volumes answered []"),
    (away.a_storage_that_is_away_is_never_taken_for_empty, Full, "capacity answered CapacityReport(available=0"),
    (away.a_storage_that_is_away_is_never_taken_for_empty, Deleting, "delete_volume answered None"),
    (away.a_storage_that_is_away_is_never_taken_for_empty, Well, "volume_health answered ()"),
    (away.a_storage_that_is_away_is_never_taken_for_empty, Present, "check answered None"),
    (away.a_storage_that_is_away_is_never_taken_for_empty, PresentOnce, "check answered None"),
    (
        away.a_storage_that_is_away_is_never_taken_for_empty,
        lambda: moved_or_emptied(FileBackend),
        "while the storage is away (way 2 of 2): get_volume raised NotFound",
    ),
    (
        away.a_process_that_starts_while_the_storage_is_away_does_not_take_it_for_empty,
        Marked,
        "in a process that started while the storage is away: get_volume raised NotFound",
    ),
    (
        away.a_process_that_starts_while_the_storage_is_away_does_not_take_it_for_empty,
        Cleaning,
        "which is back: raised NotFound",
    ),
    (
        away.a_storage_that_is_away_is_never_taken_for_empty,
        lambda: moved(Opening),
        "while the storage is away: open_device answered Device(",
    ),
    (
        away.a_storage_that_is_away_is_never_taken_for_empty,
        lambda: memory.storage(Full, overcommitted=True),
        "capacity answered CapacityReport(available=0",
    ),
    (
        away.an_open_device_is_not_taken_for_closed_while_the_storage_is_away,
        lambda: moved(Closed),
        "find_device answered None",
    ),
    (
        away.an_open_device_is_not_taken_for_closed_while_the_storage_is_away,
        lambda: moved(Unwritten),
        "has_data answered False",
    ),
    (
        away.what_was_written_survives_a_close_that_fails_while_the_storage_is_away,
        lambda: moved(FlushesOnce),
        "and not synced, is lost",
    ),
]


class FlushesOnce(FileBackend):
    """Keeps what is written beside the storage until the device is closed, and tries once to store it."""

    def open_device(self, request: OpenRequest) -> Device:
        found = super().open_device(request)
        if not (buffer := self._buffer(request.handle)).exists():
            shutil.copyfile(found.path, buffer)
            found.path.unlink()
            found.path.symlink_to(buffer)
        return found

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if (buffer := self._buffer(handle)).exists():
            data = buffer.read_bytes()
            buffer.unlink()
            with file_backend.failures():
                (self.root / file_backend.VOLUMES / handle / "data").write_bytes(data)
        super().close_device(handle)

    def _buffer(self, handle: str) -> Path:
        return self.root.with_name(f"{self.root.name}.{handle}")


def moved(kind: type[FileBackend]) -> Storage:
    """Return a storage whose directory is moved while it is away."""
    made = file_backend.storage(kind)
    root = made.files[0]

    @contextmanager
    def away() -> Iterator[None]:
        elsewhere = root.rename(root.with_name(f"{root.name}.away"))
        try:
            yield
        finally:
            elsewhere.rename(root)

    return dataclasses.replace(made, away=away)


def moved_or_emptied(kind: type[FileBackend]) -> Storage:
    """Return one that is also away when a new storage is in its place, which this backend takes for its own."""
    made = moved(kind)
    assert made.away
    way, root = made.away, made.files[0]

    @contextmanager
    def emptied() -> Iterator[None]:
        with way():
            for name in (file_backend.VOLUMES, file_backend.SNAPSHOTS, file_backend.OPEN):
                (root / name).mkdir(parents=True)
            try:
                yield
            finally:
                shutil.rmtree(root)

    return dataclasses.replace(made, also_away=(emptied,))


pytestmark = pytest.mark.root


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_backend_that_knows_what_it_has_seen_passes_in_the_process_that_has_seen_it(
    judged: Callable[..., Any],
) -> None:
    outcome = judged(away.a_storage_that_is_away_is_never_taken_for_empty, Marked)

    assert outcome.state is CheckState.PASSED, outcome.text


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "away"])
def test_a_backend_whose_directory_is_moved_passes(judged: Callable[..., Any], name: str) -> None:
    outcome = judged(CHECKS[name].body, lambda: moved(FileBackend))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_capacity_without_a_limit_need_not_be_read(judged: Callable[..., Any]) -> None:
    check = away.a_storage_that_is_away_is_never_taken_for_empty

    outcome = judged(check, lambda: memory.storage(Unlimited, overcommitted=True))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_capacity_may_be_cached_for_a_moment(judged: Callable[..., Any]) -> None:
    outcome = judged(away.a_storage_that_is_away_is_never_taken_for_empty, Cached)

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_driver_that_does_not_start_without_its_storage_is_named(tmp_path: Path, driver_of: Any) -> None:
    rows = MemoryStorage()
    storage = memory.storage(rows=lambda: rows)  # type: ignore[arg-type]

    class Waiting(driver_of):  # type: ignore[misc]
        def start(self) -> Any:
            if rows.is_away:
                raise NotServing("it waits for its storage")
            return super().start()

    client = CsiClient(storage, "kit", Waiting(storage, tmp_path))
    one = CHECKS["a process that starts while the storage is away does not take it for empty"]

    outcome = run(one, CheckContext(storage, client, features_of(MemoryBackend), FaultInjector()))

    client.close()
    assert outcome.state is CheckState.FAILED
    assert "while the storage is away, the driver does not start: it waits for its storage" in outcome.text


def test_the_memory_is_used_again_after_it_was_away() -> None:
    storage = memory.storage()
    assert storage.away

    with storage.away(), pytest.raises(Unavailable):
        storage.backend().check()
    storage.backend().check()
