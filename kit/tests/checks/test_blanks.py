"""Backends that report a wrong Device.blank, and the checks that find it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.checks import blanks

from csi_multi.contract import (
    Blank,
    Device,
    ExpandRequest,
    Expansion,
    Strings,
    Volume,
    VolumeRequest,
)
from csi_multi.contract import backend as b
from csi_multi.host import loopdev

from .loop_devices import ROOTS, Looped, Noteless, Telling, looped

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

    def formatting(self, handle: str) -> None:
        if not self.find_device(handle):
            super().formatting(handle)


class Backwards(Looped):
    """Takes what it hears last for true."""

    def formatting(self, handle: str) -> None:
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

    def has_data(self, handle: str) -> bool | None:
        return any(self.file(handle).read_bytes()[:4096])


class Suspicious(Looped):
    """Takes an allocated volume for a written one."""

    def has_data(self, handle: str) -> bool | None:
        return True


class Halfhearted(Looped):
    """Notes that mkfs began, and never that the volume was used."""

    formatted = b.Backend.formatted


class Unannounced(Looped):
    """Notes that a volume was used, and never that mkfs began."""

    formatting = b.Backend.formatting


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
    (blanks.a_formatted_volume_is_never_blank_again, looped(Backwards), "formatted, then formatting: Device"),
    (blanks.an_expanded_volume_is_as_blank_as_before, looped(Renewing), "expand_volume: Device.blank: found"),
    (blanks.a_restored_volume_is_never_blank, looped(Hopeful), "restore_volume, then Device.blank: found"),
    (blanks.has_data_tells_a_written_volume_from_a_new_one, looped(HeadReader), "one block was written at 524288"),
    (blanks.has_data_tells_a_written_volume_from_a_new_one, looped(Suspicious), "a new volume, then has_data"),
    (blanks.a_cloned_volume_is_never_blank, looped(Hopeful), "clone_volume, then Device.blank: found"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
