"""Backends that make volumes whole again that lost their end, and the checks that find it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import CHECKS, lost_ends
from csi_multi_testing.context import pattern
from csi_multi_testing.storage import Storage

from csi_multi.contract import Device, FailedPrecondition, NotFound, OpenRequest

from .file_backend import VOLUMES, FileBackend, over_files
from .test_health import Examining

pytestmark = pytest.mark.root  # without, devices are not opened


class AsLargeAsRecorded(FileBackend):
    """Makes a file as large as its record says before it is opened: a crashed creation might have left it short."""

    def open_device(self, request: OpenRequest) -> Device:
        os.truncate(self._entry(VOLUMES, request.handle) / "data", self.get_volume(request.handle).size)
        return super().open_device(request)


class HealthyUntilOpened(Examining):
    """Tells it, and makes it unseen when the volume is opened."""

    def open_device(self, request: OpenRequest) -> Device:
        os.truncate(self._entry(VOLUMES, request.handle) / "data", self.get_volume(request.handle).size)
        return super().open_device(request)


class Disowning(FileBackend):
    """Takes a volume that is not whole for one that does not exist."""

    def open_device(self, request: OpenRequest) -> Device:
        try:
            self.whole(self._entry(VOLUMES, request.handle) / "data", self.get_volume(request.handle).size)
        except FailedPrecondition as error:
            raise NotFound(str(error)) from None
        return super().open_device(request)


class NeverLooks(FileBackend):
    """Grows and copies what there is."""

    def whole(self, data: Path, size: int) -> Path:
        return data


class Told(FileBackend):
    """Refuses what is not whole at once. Correct."""

    def open_device(self, request: OpenRequest) -> Device:
        self.whole(self._entry(VOLUMES, request.handle) / "data", self.get_volume(request.handle).size)
        return super().open_device(request)


def forgetting() -> Storage:
    """Return a storage in memory that loses the last block of a volume, and copies what there is."""
    made = memory.storage()
    backend: Any = made.backend()

    @contextmanager
    def shorten(handle: str) -> Iterator[None]:
        blocks = backend.storage.data[handle]
        last = max(blocks)
        lost = blocks.pop(last)
        yield
        blocks[last] = lost

    return replace(made, shorten=shorten)


BROKEN = [
    (
        lost_ends.a_volume_that_lost_its_end_is_not_opened_as_if_it_were_whole,
        over_files(AsLargeAsRecorded),
        "then open_device, and no health reports a problem",
    ),
    (
        lost_ends.a_volume_that_lost_its_end_is_not_opened_as_if_it_were_whole,
        over_files(HealthyUntilOpened),
        "then open_device, and no health reports a problem",
    ),
    (
        lost_ends.a_volume_that_lost_its_end_is_not_opened_as_if_it_were_whole,
        over_files(Disowning),
        "then open_device: raised NotFound",
    ),
    (
        lost_ends.an_expansion_puts_no_zeros_in_the_place_of_a_lost_end,
        over_files(NeverLooks),
        "then expand_volume, and no health reports a problem",
    ),
    (
        lost_ends.a_clone_has_no_zeros_in_the_place_of_a_lost_end,
        over_files(NeverLooks),
        "then clone_volume, and no health reports a problem",
    ),
    (
        lost_ends.a_clone_has_no_zeros_in_the_place_of_a_lost_end,
        forgetting,
        "then clone_volume, and no health reports a problem",
    ),
    (
        lost_ends.a_snapshot_has_no_zeros_in_the_place_of_a_lost_end,
        over_files(NeverLooks),
        "then create_snapshot and restore_volume, and no health reports a problem",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("kind", [FileBackend, Told])
@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "lost_ends"])
def test_a_backend_that_refuses_what_is_not_whole_passes(
    judged: Callable[..., Outcome], name: str, kind: type[FileBackend]
) -> None:
    outcome = judged(CHECKS[name].body, over_files(kind))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_what_was_lost_is_there_again_after_the_block(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"head" + pattern("kit source tail") + b"behind")

    place = lost_ends._place_of(pattern("kit source tail"), file)
    with lost_ends._cut_short(file, place):
        assert file.read_bytes() == b"head"

    assert file.read_bytes() == b"head" + pattern("kit source tail") + b"behind"
