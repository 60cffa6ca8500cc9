"""Backends that forget that copies have copies, and the checks that find it."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_testing.checks import descendants
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import SourceKind, Strings


class Grandchildren(MemoryBackend):
    """Takes care of the copies of what it deletes, and not of their copies."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        lost = [one for one in self.storage.volumes if self.origin(self.origin(one)) == handle]
        super().delete_volume(handle, secrets)
        for one in lost:
            self.storage.data[one].pop(0, None)

    def origin(self, handle: str) -> str:
        volume = self.storage.volumes.get(handle)
        source = volume.stamp.source if volume else None
        if source and source.kind is SourceKind.SNAPSHOT:
            snapshot = self.storage.snapshots.get(source.handle)
            return snapshot.source if snapshot else ""
        return source.handle if source else ""


class Siblings(Grandchildren):
    """Deletes with a copy what it shares with others."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        beside = [one for one in self.storage.volumes if self.origin(one) and self.origin(one) == self.origin(handle)]
        MemoryBackend.delete_volume(self, handle, secrets)
        for one in beside:
            if one != handle:
                self.storage.data[one].pop(0, None)


BROKEN = [
    (
        descendants.clones_of_clones_survive_the_deletion_of_those_before_and_beside_them,
        Grandchildren,
        "delete_volume of generation 0 of clones, served: volume 2 of 4 has other data at [0]",
    ),
    (
        descendants.clones_of_clones_survive_the_deletion_of_those_before_and_beside_them,
        Siblings,
        "delete_volume of a clone beside another one, served: volume 2 of 4",
    ),
    (
        descendants.volumes_restored_from_snapshots_of_restored_volumes_survive_the_deletion_of_those_before_them,
        Grandchildren,
        "the deletion of the first volume, in the order (0, 1, 2, 3), served: volume 2 of 3",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
