"""Backends that report health wrongly, and the checks that find it; correct ones pass."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, health
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import Storage

from csi_multi.contract import (
    Health,
    HealthEntry,
    NotFound,
    Page,
    PageRequest,
    StorageHealth,
    StorageHealthEntry,
    Strings,
    VolumeHealth,
)
from csi_multi.contract import backend as b
from csi_multi.host import loopdev

from .loop_devices import ROOTS, Looped, looped

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
    while ROOTS:
        root = ROOTS.pop()
        for device, file in loopdev.bound_devices().items():
            if file.startswith(f"{root}/"):
                os.system(f"losetup --detach {device}")
        shutil.rmtree(root)


class Occupied(Looped):
    """Finds that a volume in use is in use."""

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        if not self.find_device(handle):
            return super().node_volume_health(handle)
        return (HealthEntry(status=Health.INACCESSIBLE, reason="InUse", message="it is open"),)


BROKEN = [
    (health.a_new_volume_is_healthy, Chatty, "volume_health of a new volume: found"),
    (health.a_new_volume_is_healthy, Careless, "succeeded, the contract requires NotFound"),
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


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "health"])
def test_a_ward_that_is_told_well_passes(judged: Any, name: str) -> None:
    outcome = judged(CHECKS[name].body, ward(Asked))

    assert outcome.state in (CheckState.PASSED, CheckState.SKIPPED), outcome.text
    assert outcome.state is CheckState.PASSED or "Storage.devices" in outcome.text
