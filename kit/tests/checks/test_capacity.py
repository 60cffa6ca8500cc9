"""Backends that are wrong about their space, and the checks that find it (test_topology.py has the places)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS, CheckState, Outcome
from csi_multi_testing.checks import capacity
from csi_multi_testing.memory import GRANULE, MemoryBackend
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import CapacityReport, CapacityRequest, ResourceExhausted, Strings, Volume, VolumeRequest
from csi_multi.contract import backend as b

from .file_backend import SIZE, FileBackend, over_files
from .placed import Local, Zonal, local, zonal

ROOM = 512 * MIB  # little enough to be filled by one volume


def small(kind: type[MemoryBackend], **given: Any) -> Callable[[], Storage]:
    """Return what makes a storage that a volume can fill."""

    def storage() -> Storage:
        return memory.storage(kind, capacity=ROOM, **given)

    storage.__name__ = kind.__name__
    return storage


class Reporting(MemoryBackend):
    """Reports something else than it should."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return self.report(super().capacity(request).available, request)

    def report(self, free: int, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=free)


class Sparse(Reporting):
    """Lets anything be made."""

    def _free(self) -> int:
        return 1 << 60

    def report(self, free: int, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=ROOM)


class Indebted(Reporting):
    def report(self, free: int, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=free - 2 * ROOM)


class Upended(Reporting):
    def report(self, free: int, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=free, minimum=2 * free, maximum=free)


class Reserving(MemoryBackend):
    """Keeps a reserve that it does not tell of."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.size.required > self._free() - 10 * GRANULE:
            raise ResourceExhausted("this would touch the reserve")
        return super().create_volume(request)


class Counting(Reporting):
    """Adds up what is used and calls it free."""

    def report(self, free: int, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=2 * ROOM - free)


class Empty(Reporting):
    """Reports what an empty storage could hold, and refuses by what is left."""

    def report(self, free: int, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=ROOM)


class Lavish(Reporting):
    """Reports what is left, and lets in what an empty storage could hold."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.size.required <= ROOM:
            return self._make(request)
        return super().create_volume(request)

    def _make(self, request: VolumeRequest) -> Volume:
        total, self.storage.total_size = self.storage.total_size, lambda: 0  # type: ignore[method-assign]
        try:
            return super().create_volume(request)
        finally:
            self.storage.total_size = total  # type: ignore[method-assign]


class Sparing(MemoryBackend):
    """Counts what is written, and so promises the same space to every new volume."""

    def _free(self) -> int:
        self.storage.total_size()
        return ROOM - sum(map(len, self.storage.data.values())) * GRANULE


class Alone(MemoryBackend):
    """Counts what its own volumes leave."""

    def _free(self) -> int:
        return super()._free() + self.storage.others


class Guessing(MemoryBackend):
    """Remembers, and asks nobody."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        with_nobody = sum(volume.size for volume in self.storage.volumes.values())
        return CapacityReport(available=ROOM - with_nobody)


class Leaking(MemoryBackend):
    """Does not count deleted volumes as gone."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        size = self.get_volume(handle).size
        super().delete_volume(handle, secrets)
        self.storage.iops["lost"] = self.storage.iops.get("lost", 0) + size

    def _free(self) -> int:
        return super()._free() - self.storage.iops.get("lost", 0)


class Indifferent(MemoryBackend):
    """Tells no number when it is asked for a use: only the plain question was tried."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        found = super().capacity(request)
        return replace(found, available=0) if request.capabilities else found


class Picky(MemoryBackend):
    """Takes places for a mistake."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        if request.segments and "nobody-knows" in request.segments:
            raise KeyError("nobody-knows")
        return super().capacity(request)


class Everywhere(Zonal):
    """Tells the same capacity for any place."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return MemoryBackend.capacity(self, request)


class Narrow(Zonal):
    """Has capacity where the place is described by nothing else."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        odd = request.segments is not None and set(request.segments) != {"zone"}
        return CapacityReport(available=0) if odd else super().capacity(request)


class Nowhere(Local):
    """Has capacity only where no place is asked for."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=0 if request.segments else ROOM)


class Whole(FileBackend, b.Capacity):
    """Reports the size of the filesystem."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        status = os.statvfs(self.root)
        return CapacityReport(available=status.f_blocks * status.f_frsize)


class Quota(FileBackend, b.Capacity):
    """Has less than the filesystem, whatever others do."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=100 * SIZE)


BROKEN = [
    (capacity.the_capacity_numbers_are_consistent, small(Indebted), "it must not be negative"),
    (capacity.the_capacity_numbers_are_consistent, small(Upended), "greater than maximum"),
    (
        capacity.a_volume_as_large_as_the_reported_capacity_can_be_created,
        small(Reserving),
        "reports space for a volume of 536870912 bytes, but: this would touch the reserve",
    ),
    (
        capacity.a_volume_larger_than_the_reported_capacity_is_refused,
        small(Sparse),
        "report what can still be created, not what is free",
    ),
    (
        capacity.beside_volumes_and_snapshots_a_volume_as_large_as_the_reported_capacity_can_be_created,
        small(Empty),
        "reports space for a volume of 536870912 bytes, but: 536870912 bytes requested",
    ),
    (
        capacity.beside_volumes_and_snapshots_a_volume_larger_than_the_reported_capacity_is_refused,
        small(Lavish),
        "report what can still be created, not what is free",
    ),
    (capacity.space_that_is_promised_to_a_volume_is_not_promised_again, small(Sparing), "fell by [0, 0, 0] bytes"),
    (
        capacity.space_that_others_take_is_not_reported,
        small(Alone),
        "fell by [0, 0, 0] bytes when others took 67108864 bytes",
    ),
    (
        capacity.space_that_others_take_is_not_reported,
        over_files(Whole),
        "report what is free now, not what the backend's own volumes leave",
    ),
    (capacity.the_capacity_is_read_from_the_storage, small(Guessing), "made no call through the boundary"),
    (capacity.a_new_volume_lowers_the_capacity_by_its_size_or_not_at_all, small(Counting), "bytes when volumes of"),
    (capacity.deleting_a_volume_restores_the_capacity, small(Leaking), "a deletion must give back the capacity"),
    (
        capacity.supported_uses_have_capacity_and_unsupported_uses_have_none,
        small(Indifferent),
        "is 0, but unsupported() accepts the use",
    ),
    (capacity.capacity_of_any_segments_is_answered_without_an_error, small(Picky), "KeyError"),
    (capacity.unreachable_segments_have_no_capacity, zonal(Everywhere), "where no volume can be created"),
    (capacity.reachable_segments_have_capacity, zonal(Narrow), "where volumes can be created, is 0 bytes"),
    (capacity.other_nodes_have_no_capacity, local(Nowhere), "the segments of this node, is 0 bytes"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("one", [one for one in CHECKS.values() if one.group == "capacity"], ids=lambda one: one.name)
def test_a_small_storage_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, small(MemoryBackend))

    places = {"NodeLocal", "Topology"} & {feature.__name__ for feature in one.features}
    assert outcome.state is (CheckState.SKIPPED if places else CheckState.PASSED), outcome.text


def test_a_quota_below_the_free_space_need_not_fall_when_others_take_some(judged: Callable[..., Outcome]) -> None:
    outcome = judged(capacity.space_that_others_take_is_not_reported, over_files(Quota))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_who_else_takes_space_must_be_known(judged: Callable[..., Outcome]) -> None:
    outcome = judged(capacity.space_that_others_take_is_not_reported, small(MemoryBackend, occupy=None))

    assert outcome.state is CheckState.SKIPPED, outcome.text
    assert outcome.text == "neither Storage.occupy nor Storage.files given"


class Full(MemoryBackend):
    def _free(self) -> int:
        return 0


class Shared(MemoryBackend):
    """Is used by somebody else, too, whenever something is made."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        self.storage.iops["taken"] = self.storage.iops.get("taken", 0) + 100 * GRANULE
        return super().create_volume(request)

    def _free(self) -> int:
        return super()._free() - self.storage.iops.get("taken", 0)


@pytest.mark.parametrize("kind", [Full, Shared])
def test_what_cannot_be_judged_is_skipped(judged: Callable[..., Outcome], kind: Any) -> None:
    outcome = judged(capacity.a_volume_as_large_as_the_reported_capacity_can_be_created, small(kind))

    assert outcome.state is CheckState.SKIPPED, outcome.text


def test_a_storage_that_is_overcommitted_without_a_limit_says_so(judged: Callable[..., Outcome]) -> None:
    for check in (
        capacity.space_that_is_promised_to_a_volume_is_not_promised_again,
        capacity.the_capacity_is_read_from_the_storage,
    ):
        outcome = judged(check, small(Guessing, overcommitted=True))

        assert outcome.state is CheckState.SKIPPED, outcome.text


@pytest.mark.parametrize(
    "check",
    [
        capacity.beside_volumes_and_snapshots_a_volume_as_large_as_the_reported_capacity_can_be_created,
        capacity.beside_volumes_and_snapshots_a_volume_larger_than_the_reported_capacity_is_refused,
    ],
)
def test_a_storage_with_space_for_three_volumes_is_skipped(judged: Callable[..., Outcome], check: Any) -> None:
    outcome = judged(check, lambda: memory.storage(capacity=3 * 16 * MIB))

    assert outcome.state is CheckState.SKIPPED, outcome.text
    assert "no space for a few volumes" in outcome.text
