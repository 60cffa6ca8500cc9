"""Backends that report a wrong Device.blank, and the checks that find it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from csi_multi_testing.checks import blanks, records

from csi_multi.contract import NO_SECRETS, Blank, Device, ExpandRequest, Expansion, Strings, Volume, VolumeRequest
from csi_multi.contract import backend as b

from .loop_devices import Looped, Noteless, Telling, looped, remove_devices

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


class Reusing(Looped):
    """Gives the bytes of a volume that was deleted to the next one."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        vars(self.storage)["bytes"] = self.file(handle).read_bytes()
        super().delete_volume(handle, secrets)

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        with self.file(made.handle).open("r+b") as file:
            file.write(vars(self.storage).get("bytes", b""))
        return made


class Cautious(Telling):
    """Takes nothing for blank."""

    def reported(self, device: Device) -> Device:
        return replace(device, blank=Blank.NEVER)


class Forgetful(Looped):
    """Keeps its notes in the process."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.notes = {}


class Deaf(Looped):
    """Takes no notes about what is in use."""

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if not self.find_device(handle):
            super().formatting(handle)


class Backwards(Looped):
    """Takes what it hears last for true."""

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.notes[handle] = Blank.INTERRUPTED


class Renewing(Looped):
    """Writes the record anew when it grows."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self.notes.pop(request.handle, None)
        return super().expand_volume(request)


class Hopeful(Looped):
    """Takes copies for as blank as anything new."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        self.notes.pop(made.handle, None)
        return made


class Stamped(Noteless):
    """Does not zero, and takes no notes."""

    def blank(self, handle: str) -> Blank:
        return self.notes.get(handle, Blank.STAMPED)


class HeadReader(Looped):
    """Looks at the first block only."""

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        return any(self.file(handle).read_bytes()[:4096])


class Suspicious(Looped):
    """Takes an allocated volume for a written one."""

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        return True


class Halfhearted(Looped):
    """Notes that mkfs began, and never that the volume was used."""

    formatted = b.Backend.formatted


class Unannounced(Looped):
    """Notes that a volume was used, and never that mkfs began."""

    formatting = b.Backend.formatting


class Rewriting(Looped):
    """Writes the whole record of a volume again with a note, and forgets its context."""

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        super().formatted(handle)
        found = self.storage.volumes[handle]
        self.storage.volumes[handle] = replace(found, stamp=replace(found.stamp, context={}))


class KeepsNotes(Looped):
    """Keeps the notes of what it deletes: whoever has the name later has them."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        if note := self.old_notes.get(made.handle):
            self.notes[made.handle] = note
        return made

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if note := self.notes.get(handle):
            self.old_notes[handle] = note
        super().delete_volume(handle, secrets)

    @property
    def old_notes(self) -> dict[str, Blank]:
        notes: dict[str, Blank] = vars(self.storage).setdefault("old_notes", {})
        return notes


class NotesOnce(Looped):
    """Remembers of which names it has taken a note."""

    noted: ClassVar[set[tuple[str, str]]] = set()

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if (handle, "formatting") not in self.noted:
            super().formatting(handle)
            self.noted.add((handle, "formatting"))


BROKEN = [
    (
        blanks.a_new_volume_is_as_blank_as_its_device_reports,
        looped(Reusing),
        "the block is not zero at 0",
    ),
    (
        blanks.a_new_volume_is_as_blank_as_its_device_reports,
        looped(Cautious),
        "otherwise the volume can never be formatted",
    ),
    (blanks.formatting_notes_survive_a_restart, looped(Forgetful), "formatting and a restart, then Device.blank"),
    (blanks.formatting_notes_survive_a_restart, looped(Stamped), "the driver would format volumes with data"),
    (blanks.formatting_notes_survive_a_restart, looped(Noteless), "formatting and formatted not overridden"),
    (blanks.formatting_notes_survive_a_restart, looped(Halfhearted), "formatted not overridden"),
    (blanks.formatting_notes_survive_a_restart, looped(Unannounced), "formatting not overridden"),
    (blanks.formatting_notes_can_be_written_while_the_device_is_open, looped(Deaf), "formatting of an open device"),
    (records.the_notes_of_a_format_keep_the_whole_record, looped(Rewriting), "formatted, then get_volume: .stamp"),
    (blanks.a_formatted_volume_is_never_blank_again, looped(Backwards), "formatted, then formatting: Device"),
    (blanks.an_expanded_volume_is_as_blank_as_before, looped(Renewing), "expand_volume: Device.blank: found"),
    (blanks.a_restored_volume_is_never_blank, looped(Hopeful), "restore_volume, then Device.blank: found"),
    (blanks.has_data_tells_a_written_volume_from_a_new_one, looped(HeadReader), "one block was written at 524288"),
    (blanks.has_data_tells_a_written_volume_from_a_new_one, looped(Suspicious), "a new volume, then has_data"),
    (blanks.a_cloned_volume_is_never_blank, looped(Hopeful), "clone_volume, then Device.blank: found"),
    (
        blanks.a_volume_that_is_made_again_under_its_name_is_as_blank_as_a_new_one,
        looped(KeepsNotes),
        "formatting, delete_volume, and create_volume under the name",
    ),
    (
        blanks.a_volume_restored_under_the_name_of_a_blank_one_is_never_blank,
        looped(KeepsNotes),
        "a copy under the name of a deleted volume that had the note formatting",
    ),
    (
        blanks.a_clone_under_the_name_of_a_blank_volume_is_never_blank,
        looped(KeepsNotes),
        "a copy under the name of a deleted volume that had the note formatting",
    ),
    (
        blanks.a_volume_that_is_made_again_under_its_name_is_as_blank_as_a_new_one,
        looped(NotesOnce),
        "formatting, of a second volume of the name too: Device.blank",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
