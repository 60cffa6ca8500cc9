"""Backends that import wrongly, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import importing
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    NO_SECRETS,
    Blank,
    Device,
    DryRunReport,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    OpenRequest,
    Stamp,
    Strings,
    Unpredictable,
    Volume,
)

from .dry_runs import Explaining, Recording, explaining


class Initialising(Explaining):
    """Makes a volume of it, as a creation does: empty."""

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        made = super().import_volume(name, stamp)
        self.storage.data[made.handle] = {}
        return made


class Doubling(Explaining):
    """Makes another one when the command is repeated."""

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        made = super().import_volume(name, stamp)
        self.storage.data.setdefault(f"{made.handle}-{len(self.storage.data)}", {})
        return made


class Restamping(Explaining):
    """Gives it the stamp of a volume that it created."""

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        made = super().import_volume(name, stamp)
        return replace(made, stamp=replace(stamp, digest=""))


class Deleting(Explaining):
    def delete_volume(self, handle: str, secrets: Strings) -> None:
        MemoryBackend.delete_volume(self, handle, secrets)


class Adopting(Explaining):
    """An expansion writes the record again, as that of a volume that was created."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        done = super().expand_volume(request)
        found = self.storage.volumes[request.handle]
        self.storage.volumes[request.handle] = replace(found, stamp=replace(found.stamp, digest=""))
        return done

    def release_volume(self, handle: str) -> str:
        self.storage.volumes[handle] = replace(
            self.storage.volumes[handle], stamp=replace(self.storage.volumes[handle].stamp, digest="imported")
        )
        return super().release_volume(handle)


class Keeping(Explaining):
    """A release leaves something."""

    def release_volume(self, handle: str) -> str:
        name = super().release_volume(handle)
        self.storage.data[handle] = {}
        return name


class Wiping(Explaining):
    """A release removes the data, as a deletion does."""

    def release_volume(self, handle: str) -> str:
        name = super().release_volume(handle)
        self.storage.data[name].clear()
        return name


class Releasing(Explaining):
    """Releases whatever it is."""

    def release_volume(self, handle: str) -> str:
        self.get_volume(handle)
        self.imported.setdefault(handle, handle)
        self.storage.volumes[handle] = replace(
            self.storage.volumes[handle], stamp=replace(self.storage.volumes[handle].stamp, digest="imported")
        )
        return super().release_volume(handle)


class Sharing(Explaining):
    """Lets two volumes be the same data."""

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        for handle in [handle for handle, other in self.imported.items() if other == name]:
            self.imported[handle] = ""
        return super().import_volume(name, stamp)


class Replacing(Explaining):
    """The later import wins its name."""

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        if name in self.storage.data:
            self.storage.volumes.pop(self.leaf(stamp.name), None)
        return super().import_volume(name, stamp)


class Creating(Explaining):
    """Makes what does not exist."""

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        if name.startswith("by-hand-"):
            self.storage.data.setdefault(name, {})
        return super().import_volume(name, stamp)


class Snatching(Explaining):
    """Does not look who has it."""

    def release_volume(self, handle: str) -> str:
        self.storage.attached.pop(handle, None)
        return super().release_volume(handle)


class Acting(Explaining):
    """A dry run is the real thing."""

    def dry_run(self, report: DryRunReport) -> Explaining:
        report.record_change("put", *self.storage.data, *self.storage.volumes, why="writes a row")
        return self


class Rambling(Explaining):
    """Tells more than fits into the sentence of the command."""

    def release_volume(self, handle: str) -> str:
        return f"{super().release_volume(handle)}\nas it was before"


class StampedFirst(Explaining):
    """Makes the volume visible before it has its data."""

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        handle = self.leaf(stamp.name)
        if handle not in self.storage.volumes and name in self.storage.data:
            self.storage.put(self.storage.volumes, handle, Volume(handle=handle, size=1 << 24, stamp=stamp))
            self.storage.put(self.imported, handle, name)
            self.storage.put(self.storage.data, handle, self.storage.data[name])
        return super().import_volume(name, stamp)


class ReleasedFirst(Explaining):
    """Makes the volume invisible before the rest of it is gone."""

    def release_volume(self, handle: str) -> str:
        name = self.imported.get(handle, "")
        self.get_volume(handle)
        self.storage.drop(self.storage.volumes, handle)
        self.storage.drop(self.storage.data, handle)
        return name


class Opening(Explaining):
    """Has devices, of a sort. An imported one is blank, and is released although it is open."""

    def open_device(self, request: OpenRequest) -> Device:
        self.get_volume(request.handle)
        return self.device()

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        self.get_volume(handle)
        return self.device()

    def device(self) -> Device:
        return Device(path="/dev/null", number="1:3", proof={}, blank=Blank.ZEROED)  # type: ignore[arg-type]


BROKEN = [
    (importing.an_import_keeps_the_data_and_can_be_repeated, explaining(Initialising), "the first block differs"),
    (importing.an_import_keeps_the_data_and_can_be_repeated, explaining(Doubling), "repeated: the storage, against"),
    (importing.an_import_keeps_the_data_and_can_be_repeated, explaining(Restamping), "import_volume: the stamp"),
    (importing.an_imported_volume_is_never_deleted, explaining(Deleting), "succeeded, the contract requires Failed"),
    (importing.an_imported_volume_is_never_deleted, explaining(Adopting), "it is not imported"),
    (importing.a_release_undoes_an_import_and_keeps_the_data, explaining(Keeping), "release_volume: the storage"),
    (importing.a_release_undoes_an_import_and_keeps_the_data, explaining(Wiping), "a second time: the first block"),
    (importing.a_release_undoes_an_import_and_keeps_the_data, explaining(Rambling), "not a text in one line"),
    (importing.only_an_imported_volume_is_released, explaining(Releasing), "succeeded, the contract requires Failed"),
    (importing.what_is_a_volume_already_is_not_imported_again, explaining(Sharing), "another name: succeeded"),
    (importing.what_is_a_volume_already_is_not_imported_again, explaining(Replacing), "imported volume: succeeded"),
    (importing.what_does_not_exist_is_not_imported, explaining(Creating), "succeeded, the contract requires NotFound"),
    (importing.an_attached_volume_is_not_released, explaining(Snatching), "succeeded, the contract requires InUse"),
    (importing.dry_runs_of_an_import_and_its_release_change_nothing, explaining(Acting), "against what was there"),
    (importing.an_import_completes_after_a_crash_at_any_call, explaining(StampedFirst), "whose process died at call 2"),
    (importing.a_release_completes_after_a_crash_at_any_call, explaining(ReleasedFirst), "then deleted: remaining: "),
    (
        importing.an_imported_volume_is_never_blank_and_not_released_while_it_is_open,
        explaining(Opening, devices=True),
        "import_volume, then Device.blank",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


class Strict(Explaining):
    """Refuses the release of an attached volume for good, and not only for now."""

    def release_volume(self, handle: str) -> str:
        if handle in self.storage.attached:
            raise FailedPrecondition(f"volume {handle!r} is attached")
        return super().release_volume(handle)


@pytest.mark.parametrize(
    ("check", "kind"),
    [
        (importing.an_attached_volume_is_not_released, Strict),
        (importing.an_import_completes_after_a_crash_at_any_call, Initialising),
        (importing.what_does_not_exist_is_not_imported, Creating),
        (importing.what_is_a_volume_already_is_not_imported_again, Sharing),
    ],
)
def test_what_a_failed_check_has_imported_is_released(fails: Any, check: Any, kind: type[Explaining]) -> None:
    storage = explaining(kind)()

    fails(check, lambda: storage, "")

    backend: Any = storage.backend()
    assert [one for one in backend.storage.volumes.values() if one.stamp.imported] == []


def test_a_name_that_is_the_beginning_of_another_may_exist(judged: Callable[..., Outcome]) -> None:
    storage = explaining(Explaining)()
    assert storage.importable
    names = [storage.importable(b"") for _ in range(9)]  # the check gets by-hand-10

    outcome = judged(importing.what_does_not_exist_is_not_imported, lambda: storage)

    assert names[0] == "by-hand-1"
    assert outcome.state is CheckState.PASSED, outcome.text


class Unsure(Explaining):
    """Cannot tell before what an import will do. Correct."""

    closed = 0

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        if isinstance(self.storage, Recording):
            raise Unpredictable("the storage chooses the name")
        return super().import_volume(name, stamp)

    def close(self) -> None:
        Unsure.closed += 1


def test_a_dry_run_may_be_unpredictable_and_is_closed(judged: Callable[..., Outcome]) -> None:
    outcome = judged(importing.dry_runs_of_an_import_and_its_release_change_nothing, explaining(Unsure))

    assert outcome.state is CheckState.PASSED, outcome.text
    assert outcome.notes == ("dry run of import_volume: the storage chooses the name",)
    assert Unsure.closed == 2
