"""Backends that are wrong about sizes, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS, CheckState, run
from csi_multi_testing.checks import sizes
from csi_multi_testing.context import in_process
from csi_multi_testing.memory import GIB, GRANULE, MemoryBackend
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import (
    Blank,
    Device,
    FailedPrecondition,
    InvalidArgument,
    OpenRequest,
    OutOfRange,
    ResourceExhausted,
    SizeRange,
    Volume,
    VolumeRequest,
)


class Stingy(MemoryBackend):
    """Keeps something for its own needs."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._resized(super().create_volume(request), -MIB)

    def _resized(self, volume: Volume, by: int) -> Volume:
        self.storage.put(self.storage.volumes, volume.handle, replace(volume, size=volume.size + by))
        return self.get_volume(volume.handle)


class Generous(Stingy):
    """Adds something for its own needs."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._resized(MemoryBackend.create_volume(self, request), MIB)


class Truncating(MemoryBackend):
    """Counts in whole units, and drops the rest."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        required = request.size.required // GRANULE * GRANULE
        return super().create_volume(replace(request, size=replace(request.size, required=required)))


class Forgetting(MemoryBackend):
    """Tells the size that was asked for, and has the one it made."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        return replace(made, size=request.size.required or made.size)


class Careful(MemoryBackend):
    """Wants more room below the limit than it needs."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.size.limit and request.size.limit < request.size.required + MIB:
            raise OutOfRange("the limit is too near")
        return super().create_volume(request)


class Unlimited(MemoryBackend):
    """Does not look at the limit."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return super().create_volume(replace(request, size=replace(request.size, limit=0)))


class TakesOnlyTheRequiredSize(MemoryBackend):
    """Leaves out what the filesystem needs: something is always required, or so it seems."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return super().create_volume(replace(request, size=replace(request.size, least=0)))


class RaisesAboveTheLimit(MemoryBackend):
    """Gives the filesystem what it needs, whatever the limit."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        limit = 0 if request.size.least else request.size.limit
        return super().create_volume(replace(request, size=replace(request.size, limit=limit)))


class Empty(MemoryBackend):
    """Makes what is required, and be it nothing."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        if not request.size.required:
            self.storage.put(self.storage.volumes, made.handle, replace(made, size=0))
        return self.get_volume(made.handle)


class Demanding(MemoryBackend):
    """Takes a request without a size for a mistake."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.size == SizeRange():
            raise InvalidArgument("a size is required")
        return super().create_volume(request)


class Confused(MemoryBackend):
    """Takes a range that it cannot serve for a mistake."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except OutOfRange as error:
            raise InvalidArgument(str(error)) from None


class Promising(MemoryBackend):
    """Promises anything."""

    def _free(self) -> int:
        return 1 << 62


class Littering(MemoryBackend):
    """Sees that there is no room after it has begun."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.size.required > self._free():
            self.storage.put(self.storage.data, f"{request.name}.new", {})
        return super().create_volume(request)


class Blocking(MemoryBackend):
    """Leaves something behind that takes the name, where nobody looks."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        mark = f"begun {request.name}"
        if mark in self.storage.iops:
            raise FailedPrecondition(f"volume {request.name!r} is half-made")
        try:
            return super().create_volume(request)
        except ResourceExhausted:
            self.storage.iops[mark] = 0
            raise


class Files(MemoryBackend):
    """Shows volumes as files, which do for devices where only their size matters."""

    directory: Path
    missing = 0  # bytes

    def open_device(self, request: OpenRequest) -> Device:
        path = self.directory / request.handle
        path.touch()
        with path.open("r+b") as file:
            file.truncate(self.get_volume(request.handle).size - self.missing)
        return Device(path=path, number="7:0", proof={}, blank=Blank.ZEROED)


class Short(Files):
    """Makes devices without the unit that was begun."""

    missing = GRANULE


def ending_early() -> Storage:
    """Return a storage whose volumes lose what is written beyond their middle."""
    storage = memory.storage()
    write = storage.write
    assert write

    def short(handle: str, offset: int, data: bytes) -> None:
        if offset < storage.size // 2:
            write(handle, offset, data)

    return replace(storage, write=short)


BROKEN = [
    (
        sizes.a_volume_without_a_size_is_large_enough_for_its_filesystem,
        TakesOnlyTheRequiredSize,
        f"returned a size of {GIB} bytes",
    ),
    (
        sizes.a_volume_without_a_size_is_large_enough_for_its_filesystem,
        RaisesAboveTheLimit,
        "succeeded, the contract requires OutOfRange",
    ),
    (sizes.a_volume_has_at_least_the_required_size, Stingy, "returned a size of 15728640 bytes"),
    (sizes.a_required_size_is_rounded_up_and_never_down, Truncating, "returned a size of"),
    (sizes.a_required_size_is_rounded_up_and_never_down, Forgetting, "the size of get_volume"),
    (sizes.a_rounded_size_stays_within_the_limit, Careful, "raised OutOfRange (the limit is too near)"),
    (sizes.a_size_limit_alone_is_enough, Unlimited, f"returned a size of {GIB} bytes"),
    (sizes.a_volume_without_a_size_gets_the_default, Empty, "returned a size of 0 bytes"),
    (sizes.a_volume_without_a_size_gets_the_default, Demanding, "raised InvalidArgument (a size is required)"),
    (sizes.an_exact_size_is_created_exactly, Generous, "returned a size of 17825792 bytes"),
    (sizes.a_size_range_without_a_possible_size_is_refused, Unlimited, "returned a size of 4096 bytes"),
    (sizes.a_size_range_without_a_possible_size_is_refused, Confused, "the contract requires OutOfRange"),
    (
        sizes.a_size_that_is_too_large_is_refused_and_leaves_nothing,
        Promising,
        "succeeded, the contract requires OutOfRange",
    ),
    (sizes.a_size_that_is_too_large_is_refused_and_leaves_nothing, Littering, "refused, but: new on the storage"),
    (sizes.a_size_that_is_too_large_is_refused_and_leaves_nothing, Blocking, "with the same name: raised Failed"),
    (sizes.a_volume_holds_data_up_to_its_end, ending_early, "the last block differs"),
    (sizes.a_device_is_as_large_as_its_volume, Short, "compared with the size of create_volume"),
]


@pytest.fixture
def shown(tmp_path: Path) -> Callable[[Any], Any]:
    """Return what `judged` takes: a class that shows files needs a directory and says that it has devices."""

    def shown(subject: Any) -> Any:
        if not (isinstance(subject, type) and issubclass(subject, Files)):
            return subject
        placed = type(subject.__name__, (subject,), {"directory": tmp_path})
        return lambda: memory.storage(placed, devices=True)

    return shown


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, shown: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, shown(backend), words)


def test_devices_of_the_right_size_pass(judged: Any, shown: Any) -> None:
    outcome = judged(sizes.a_device_is_as_large_as_its_volume, shown(Files))

    assert outcome.state is CheckState.PASSED, outcome.text


class Gibibytes(MemoryBackend):
    """Makes whole GiB only, as many storage systems do."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        size = request.size.choose(granularity=GIB, default=GIB)
        return super().create_volume(replace(request, size=SizeRange(required=size, limit=size)))


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "sizes"])
def test_large_units_pass(name: str) -> None:
    outcome = run(CHECKS[name], in_process(memory.storage(Gibibytes, exact_sizes=(GIB,))))

    assert outcome.state is not CheckState.FAILED, outcome.text
