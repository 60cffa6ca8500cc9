"""Backends that compare names of owners carelessly, and the checks that find it."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_testing.checks import owners
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import Stamp, Volume, leaf, missing

from .test_foreign import Careful, beside


class Beginning(Careful):
    """Compares how the name of a cluster begins: tags are looked up with a pattern."""

    def ours(self, stamp: Stamp) -> bool:
        return stamp.driver == self.setting.driver and stamp.cluster.startswith(self.setting.cluster)


class Either(Careful):
    """Takes for foreign what differs in the driver and in the cluster."""

    def ours(self, stamp: Stamp) -> bool:
        return stamp.driver == self.setting.driver or stamp.cluster == self.setting.cluster


class SmallLetters(Careful):
    def ours(self, stamp: Stamp) -> bool:
        wanted = (self.setting.driver, self.setting.cluster)
        return (stamp.driver.lower(), stamp.cluster.lower()) == tuple(one.lower() for one in wanted)


class PerInstance(MemoryBackend):
    """Begins its handles with the name of the instance. Correct."""

    def leaf(self, name: str) -> str:
        return f"{self.setting.instance.encode().hex()}-{leaf(name)}"

    def get_volume(self, handle: str) -> Volume:
        if not self.is_own(handle):
            raise missing("volume", handle)
        return super().get_volume(handle)

    def delete_volume(self, handle: str, secrets: Any) -> None:
        self.get_volume(handle)
        super().delete_volume(handle, secrets)

    def is_own(self, handle: str) -> bool:
        return handle.partition("-")[0] == self.leaf("").partition("-")[0]


class PerInstanceBeginning(PerInstance):
    """Does not look where the name of the instance ends."""

    def is_own(self, handle: str) -> bool:
        return handle.startswith(self.leaf("").partition("-")[0])


class SnapshotsOfAll(Careful):
    """Looks for the owner of a volume only."""

    get_snapshot = MemoryBackend.get_snapshot


class ListsAllSnapshots(Careful):
    list_snapshots = MemoryBackend.list_snapshots


class GrowsAll(Careful):
    """Looks for the owner before it reads or deletes."""

    expand_volume = MemoryBackend.expand_volume


BROKEN = [
    (
        owners.owners_with_similar_names_do_not_touch_each_others_volumes,
        beside(Beginning),
        "a volume of cluster 'kit-2': get_volume answered",
    ),
    (
        owners.owners_with_similar_names_do_not_touch_each_others_volumes,
        beside(Either),
        "for cluster 'another', a volume of ours: get_volume answered",
    ),
    (
        owners.owners_with_similar_names_do_not_touch_each_others_volumes,
        beside(SmallLetters),
        "for cluster 'KIT', a volume of ours",
    ),
    (
        owners.instances_with_similar_names_are_as_different_as_others,
        PerInstanceBeginning,
        "of a volume of instance 'kit-2', against instance 'another'",
    ),
    (
        owners.owners_with_similar_names_do_not_touch_each_others_snapshots,
        beside(SnapshotsOfAll),
        "for cluster 'another', a snapshot of ours: get_snapshot answered",
    ),
    (
        owners.owners_with_similar_names_do_not_touch_each_others_snapshots,
        beside(ListsAllSnapshots),
        "for cluster 'another', a snapshot of ours: list_snapshots lists it",
    ),
    (
        owners.owners_with_similar_names_do_not_copy_or_change_each_others_volumes,
        beside(GrowsAll),
        "for cluster 'another', a volume of ours: expand_volume answered",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize(
    ("check", "backend"),
    [
        (owners.owners_with_similar_names_do_not_touch_each_others_volumes, beside(Careful)),
        (owners.owners_with_similar_names_do_not_touch_each_others_snapshots, beside(Careful)),
        (owners.owners_with_similar_names_do_not_copy_or_change_each_others_volumes, beside(Careful)),
        (owners.instances_with_similar_names_are_as_different_as_others, PerInstance),
        (owners.instances_with_similar_names_are_as_different_as_others, MemoryBackend),
    ],
)
def test_a_correct_backend_passes(judged: Any, check: Any, backend: Any) -> None:
    outcome = judged(check, backend)

    assert outcome.state.value == "passed", outcome.text
