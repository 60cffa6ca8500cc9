"""Backends that show what an earlier volume had written, and the checks that find it."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_testing.checks import reused_space
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import Strings, Volume, VolumeRequest


class Reusing(MemoryBackend):
    """Gives freed space to new volumes, zeroed at both ends only, where signatures are."""

    @property
    def freed(self) -> dict[int, bytes]:
        blocks: dict[int, bytes] = vars(self.storage).setdefault("freed", {})
        return blocks

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.freed.update(self.storage.data.get(handle, {}))
        super().delete_volume(handle, secrets)

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        if not request.source:
            end = made.size - 4096
            self.storage.data[made.handle] = {at: one for at, one in self.freed.items() if 0 < at < end}
        return made


class CopiesSparsely(Reusing):
    """Zeroes what is new, and leaves out the zeros of a copy."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = MemoryBackend._put(self, request, default)
        if request.source:
            self.storage.data[made.handle] = self.freed | self.storage.data[made.handle]
        return made


BROKEN = [
    (reused_space.a_new_volume_shows_nothing_of_a_deleted_one, Reusing, "after its name was space was used and freed"),
    (
        reused_space.a_clone_equals_its_source_also_where_that_was_never_written,
        CopiesSparsely,
        "clone_volume, on space that was used before: the copy has other data",
    ),
    (
        reused_space.a_restored_volume_equals_its_snapshot_also_where_that_was_never_written,
        CopiesSparsely,
        "restore_volume, on space that was used before: the copy has other data",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
