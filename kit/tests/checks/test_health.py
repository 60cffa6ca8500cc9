"""Backends that report health wrongly, and the checks that find it; correct ones pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import CHECKS, health
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import Storage

from csi_multi.contract import (
    Health,
    HealthEntry,
    NotFound,
    Page,
    PageRequest,
    StorageError,
    StorageHealth,
    StorageHealthEntry,
    Strings,
    Volume,
    VolumeHealth,
)
from csi_multi.contract import backend as b

from .file_backend import VOLUMES, FileBackend, over_files
from .loop_devices import Looped, looped, remove_devices

WITHOUT = ("Storage.devices not given", "Storage.records not given")  # skipped
ILL = HealthEntry(status=Health.DEGRADED, reason="OneDiskLeft", message="one disk is left of two; replace the other")
FULL = StorageHealthEntry(status=StorageHealth.STORAGE_DEGRADED, reason="PoolAlmostFull", message="97 % are used")


class Nodal(MemoryBackend, b.NodeHealthReporter):
    """Sees the same from the node."""

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        return self.volume_health(handle, {})

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return (FULL,)


def ward(kind: type[MemoryBackend]) -> Callable[[], Storage]:
    """Return a storage with volumes that are ill, before any check."""

    def storage() -> Storage:
        made = memory.storage(kind)
        backend: Any = made.backend()
        for number in range(3):
            backend.storage.health[f"ill-{number}"] = (ILL, replace(ILL, reason="Slow", message="slow"))
        return made

    return storage


class Asked(Nodal):
    """Knows the volumes that are ill when asked for each."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        if handle in self.storage.health:
            return self.storage.health[handle]
        return super().volume_health(handle, secrets)


class Chatty(Nodal):
    """Says that all is well."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return (replace(ILL, reason="Healthy", message="all is well"),)


class Careless(Nodal):
    """Nothing is wrong with what is not there."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        return ()


class Fine(Nodal):
    """Is always well."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return ()


class Unlisted(Nodal):
    """Lists no one who is ill."""

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return Page(items=())


class Blind(Nodal):
    """Sees nothing from the node."""

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return ()


class Chronic(Nodal):
    """Once ill, always ill."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        seen = vars(self.storage).setdefault("seen", {})
        return seen.setdefault(handle, super().volume_health(handle, secrets)) or seen.pop(handle)


class Epidemic(Nodal):
    """All are ill when one is."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return next(iter(self.storage.health.values()), ())


class Disowning(Nodal):
    """Does not find a volume that is ill."""

    def get_volume(self, handle: str) -> Volume:
        if handle in self.storage.health:
            raise NotFound(f"volume {handle!r} does not exist")
        return super().get_volume(handle)

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        return self.storage.health.get(handle, ())


class Complete(Asked):
    """Lists the healthy, too."""

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return Page(items=tuple(VolumeHealth(handle=handle) for handle in self.storage.volumes))


class Endless(Asked):
    """Knows no pages."""

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return super().list_volume_health(PageRequest(), secrets)


class Worded(Asked):
    """Tells what is wrong in sentences."""

    entries: tuple[HealthEntry, ...] = (replace(ILL, reason="one disk left"),)

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        found = super().list_volume_health(page, secrets)
        return replace(found, items=tuple(replace(one, entries=self.entries) for one in found.items))


class Wordless(Worded):
    entries = (replace(ILL, message=""),)


class Twice(Worded):
    entries = (ILL, replace(ILL, message="the same once more"))


class OwnDataOnly(MemoryBackend):
    """Looks for what a volume has written itself; a new copy has written nothing."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        found = super().volume_health(handle, secrets)
        return () if self.get_volume(handle).stamp.source else found


class LastOnly(Nodal):
    """Overwrites what it knows of a volume."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        return super().volume_health(handle, secrets)[-1:]


class WorstOnly(MemoryBackend):
    """Tells what is worst when it is asked for all volumes."""

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        found = super().list_volume_health(page, secrets)
        worst = (replace(one, entries=(max(one.entries, key=lambda entry: entry.status.value),)) for one in found.items)
        return replace(found, items=tuple(worst))


class Vague(MemoryBackend):
    """Tells that something is wrong, and not what."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        return (ILL,) if super().volume_health(handle, secrets) else ()


class Open(MemoryBackend):
    """Takes any cursor for the start."""

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return super().list_volume_health(PageRequest(limit=page.limit), secrets)


class Unused(Nodal):
    """Takes what is not open for broken."""

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        return (replace(ILL, status=Health.INACCESSIBLE, reason="NotOpen", message="it is not open"),)


class Unaware(Nodal):
    """Nothing is wrong on the node with what is not there."""

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        try:
            return super().node_volume_health(handle)
        except NotFound:
            return ()


class Percent(Nodal):
    """Has the numbers in the reason."""

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return (replace(FULL, reason="Pool97%Full"),)


pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


class Occupied(Looped):
    """Finds that a volume in use is in use."""

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        if not self.find_device(handle):
            return super().node_volume_health(handle)
        return (HealthEntry(status=Health.INACCESSIBLE, reason="InUse", message="it is open"),)


class Examining(FileBackend, b.VolumeHealthLister):
    """Looks for the data and the record of each volume."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        entry = self._entry(VOLUMES, handle)
        if not entry.exists():
            raise NotFound(f"volume {handle!r} does not exist")
        with suppress(StorageError):
            found = self._read(VOLUMES, handle, Volume)
            data = entry / "data"
            if data.exists() and data.stat().st_size == found.size:
                return ()
        return (ILL,)

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        asked = [(one, self.volume_health(one, secrets)) for one in os.listdir(self.root / VOLUMES) if self.is_one(one)]
        return Page(items=tuple(VolumeHealth(handle=one, entries=entries) for one, entries in asked if entries))

    def is_one(self, name: str) -> bool:
        return not name.startswith(".")


class Overlooking(Examining):
    """Lists no volume that has no data."""

    def is_one(self, name: str) -> bool:
        return (self.root / VOLUMES / name / "data").exists()


class Filing(Examining):
    """Lists what has a record."""

    def is_one(self, name: str) -> bool:
        with suppress(StorageError):
            self._read(VOLUMES, name, Volume)
            return True
        return False


class ReadsFirst(Examining):
    """Reads the volume before it asks for its health."""

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return super().volume_health(handle, secrets)

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return Examining(self.config, self.setting, self.root).list_volume_health(page, secrets)


BROKEN = [
    (
        health.the_health_listing_agrees_with_volume_health_whichever_file_is_damaged,
        over_files(ReadsFirst),
        "record is missing: list_volume_health reports {HealthEntry(",
    ),
    (
        health.the_health_listing_agrees_with_volume_health_whichever_file_is_damaged,
        over_files(Overlooking),
        "data is missing: list_volume_health, against volume_health: found set(), the contract requires {HealthEntry(",
    ),
    (
        health.the_health_listing_agrees_with_volume_health_whichever_file_is_damaged,
        over_files(Filing),
        "list_volume_health, against volume_health: found set()",
    ),
    (health.a_new_volume_is_healthy, Chatty, "volume_health of a new volume: found"),
    (health.a_new_volume_is_healthy, Careless, "succeeded, the contract requires NotFound"),
    (health.a_damaged_volume_is_unhealthy_until_it_is_repaired, Fine, "volume_health after Storage.damage("),
    (health.a_damaged_volume_is_unhealthy_until_it_is_repaired, Unlisted, "list_volume_health after Storage.damage("),
    (health.a_damaged_volume_is_unhealthy_until_it_is_repaired, Blind, "node_volume_health after Storage.damage("),
    (health.a_damaged_volume_is_unhealthy_until_it_is_repaired, Chronic, " and its repair: found"),
    (health.a_damaged_volume_is_unhealthy_until_it_is_repaired, Epidemic, "volume_health of another volume after"),
    (health.a_damaged_volume_is_unhealthy_until_it_is_repaired, Disowning, "a damaged volume exists"),
    (health.a_damaged_clone_is_unhealthy_until_it_is_repaired, OwnDataOnly, "volume_health after Storage.damage("),
    (health.all_problems_of_a_volume_are_reported_at_once, LastOnly, "the contract requires the present problems"),
    (health.all_problems_of_a_volume_are_reported_at_once, WorstOnly, "the contract requires the present problems"),
    (health.all_problems_of_a_volume_are_reported_at_once, Vague, "give ways that health tells apart"),
    (health.only_unhealthy_volumes_are_in_the_health_listing, Complete, "without an entry"),
    (
        health.only_unhealthy_volumes_are_in_the_health_listing,
        ward(Endless),
        "returned 3 items, the limit of the request is 1",
    ),
    (health.only_unhealthy_volumes_are_in_the_health_listing, ward(Worded), "'one disk left' is not a CamelCase word"),
    (health.only_unhealthy_volumes_are_in_the_health_listing, ward(Wordless), "OneDiskLeft has no message"),
    (health.only_unhealthy_volumes_are_in_the_health_listing, ward(Twice), "DEGRADED OneDiskLeft is reported twice"),
    (health.the_health_listing_agrees_with_volume_health, ward(Twice), "compared with list_volume_health"),
    (health.an_unknown_health_cursor_is_refused, Open, "succeeded, the contract requires InvalidToken"),
    (health.a_new_volume_is_healthy_on_its_node, Unused, "which is not open: found"),
    (health.a_new_volume_is_healthy_on_its_node, Unaware, "succeeded, the contract requires NotFound"),
    (health.storage_problems_have_a_reason_and_a_message, Percent, "is not a CamelCase word"),
    (health.an_open_volume_is_healthy_on_its_node, looped(Occupied), "a new volume that is open: found"),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "NOTICE_SECONDS", 0.2)


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_damage_that_fails_in_the_middle_is_repaired(judged: Any) -> None:
    storage = memory.storage()
    undamaged: list[str] = []

    def damage(handle: str) -> None:
        raise OSError(f"one disk of {handle} is off, the other one cannot be")

    check = health.a_damaged_volume_is_unhealthy_until_it_is_repaired
    outcome = judged(check, lambda: replace(storage, damage=damage, undamage=undamaged.append))

    assert outcome.state is CheckState.FAILED
    assert "one disk of" in outcome.text
    assert len(undamaged) == 1


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "health"])
def test_a_ward_that_is_told_well_passes(judged: Any, name: str) -> None:
    outcome = judged(CHECKS[name].body, ward(Asked))

    assert outcome.state in (CheckState.PASSED, CheckState.SKIPPED), outcome.text
    assert outcome.state is CheckState.PASSED or outcome.text in WITHOUT


def test_a_listing_that_looks_at_every_file_passes(judged: Callable[..., Outcome]) -> None:
    check = health.the_health_listing_agrees_with_volume_health_whichever_file_is_damaged

    outcome = judged(check, over_files(Examining))

    assert outcome.state is CheckState.PASSED, outcome.text
