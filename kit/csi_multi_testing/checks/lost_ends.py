"""A volume whose storage lost the end of its data (a file that was cut short): zeros in its place are no data.

Who makes a file as large again as its record says, before it is opened, grown or copied, hides the loss for ever:
nobody can tell these zeros from what was written. An error is right, and so is a device that ends early, or a health
that goes on to tell it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from csi_multi.contract import HealthEntry, NotFound, SizeRange, StorageError, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped, expect
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..operations.base import attempt, describe_error, wait_until_ready
from ..operations.create import SEED, source_volume
from ..protocol import Target, read_from
from ..storage_contents import all_files
from .devices import open_device

TAIL = pattern(f"{SEED} tail")  # the last block of a volume that was filled
LOST = "the end of a volume's data was lost"
Shorten = Callable[[], AbstractContextManager[object]]


def volume_to_shorten(t: CheckContext) -> tuple[Volume, Shorten]:
    """Return a filled volume, and what lets it lose its end for a block of code. Raises CheckSkipped."""
    before = set(all_files(t.storage.records))
    volume = source_volume(t)
    if shorten := t.storage.shorten:
        return volume, partial(shorten, volume.handle)
    for file in all_files(t.storage.records):
        if file not in before and (at := _place_of(TAIL, file)) >= 0:
            return volume, partial(_cut_short, file, at)
    raise CheckSkipped("Storage.shorten not given, and no file below Storage.records has the last block of a volume")


def _place_of(data: bytes, file: Path) -> int:
    """Return where a file has this data, -1 where it has not."""
    with file.open("rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            return -1
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(data)


@contextmanager
def _cut_short(file: Path, size: int) -> Iterator[None]:
    """Let a file end at this size for the block."""
    with file.open("r+b") as opened:
        opened.seek(size)
        lost = opened.read()
        opened.truncate(size)
        try:
            yield
        finally:
            if file.exists():  # not deleted meanwhile
                opened.seek(size)
                opened.write(lost)


def problems(t: CheckContext, volume: Volume) -> list[HealthEntry | Exception]:
    """Return what health tells of a volume, by all methods that the backend has."""
    found: list[HealthEntry | Exception] = []
    reads: list[Callable[[], tuple[HealthEntry, ...]]] = []
    if b.VolumeHealthReporter in t.features:
        reads.append(partial(t.client.health, volume.handle))
    if b.NodeHealthReporter in t.features:
        reads.append(partial(t.backend.node_volume_health, volume.handle))
    for read in reads:
        entries, error = attempt(read)
        found += [error] if error else entries or ()
    return found


def expect_noticed(error: Exception, what: str) -> None:
    """Require of an error that it is one of the contract's, and that it does not say that the volume is gone."""
    good = isinstance(error, StorageError) and not isinstance(error, NotFound)
    expect(good, f"{what}: raised {describe_error(error)}; the volume is there, and its health is what was lost")


def expect_reported(t: CheckContext, volume: Volume, what: str) -> None:
    if not problems(t, volume):
        raise CheckFailed(
            f"{what}, and no health reports a problem: its last block now reads as other data. Compare what the "
            "storage has with what was recorded, and raise FailedPrecondition: nothing repairs that"
        )


def has_other_end(read: Callable[[], bytes]) -> bool:
    """Whether the place of the last block can be read, and has other data than was written."""
    found, error = attempt(read)
    return error is None and len(found or b"") == BLOCK_SIZE and found != TAIL


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_volume_that_lost_its_end_is_not_opened_as_if_it_were_whole(t: CheckContext) -> None:
    """Also not when it is opened again: what was opened first may have made it whole."""
    volume, shorten = volume_to_shorten(t)
    end = volume.size - BLOCK_SIZE
    with shorten():
        for when in ("", " once more", " after a restart"):
            what = f"{LOST}, then open_device{when}"
            device, error = attempt(partial(open_device, t, volume))
            if error:
                expect_noticed(error, what)
            if device and has_other_end(partial(read_from, device.path, end, BLOCK_SIZE)):
                expect_reported(t, volume, what)
            attempt(partial(t.backend.close_device, volume.handle))
            if when:
                t.client.restart()
    t.expect_filled(volume, SEED, volume.size, "the end of a volume's data was lost and came back")


@check(b.Expand, data=True, target=Target.BACKEND)
def an_expansion_puts_no_zeros_in_the_place_of_a_lost_end(t: CheckContext) -> None:
    volume, shorten = volume_to_shorten(t)
    what = f"{LOST}, then expand_volume"
    with shorten():
        shown = attempt(partial(t.client.get, volume.handle))[0]
        if shown and shown.size < volume.size:
            raise CheckSkipped("the size of a volume is what the storage has of it: get_volume shows that it is less")
        _, error = attempt(lambda: t.client.expand(volume.handle, SizeRange(required=volume.size + t.size)))
        if error:
            expect_noticed(error, what)
        elif has_other_end(lambda: t.read(volume, BLOCK_SIZE, volume.size - BLOCK_SIZE)):
            expect_reported(t, volume, what)


@check(b.Clone, data=True, target=Target.BACKEND)
def a_clone_has_no_zeros_in_the_place_of_a_lost_end(t: CheckContext) -> None:
    volume, shorten = volume_to_shorten(t)
    _expect_no_whole_copy(t, volume, shorten, lambda: t.copy(volume), "clone_volume")


@check(b.Snapshots, data=True, target=Target.BACKEND)
def a_snapshot_has_no_zeros_in_the_place_of_a_lost_end(t: CheckContext) -> None:
    volume, shorten = volume_to_shorten(t)

    def restored() -> Volume:
        return t.copy(wait_until_ready(t, t.snapshot(volume)))

    _expect_no_whole_copy(t, volume, shorten, restored, "create_snapshot and restore_volume")


def _expect_no_whole_copy(
    t: CheckContext, volume: Volume, shorten: Shorten, make: Callable[[], Volume], method: str
) -> None:
    """Require an error, a copy that ends early as well, or one whose health tells it."""
    what = f"{LOST}, then {method}"
    with shorten():
        made, error = attempt(make)
    if error:
        expect_noticed(error, what)
    elif made and has_other_end(lambda: t.read(made, BLOCK_SIZE, volume.size - BLOCK_SIZE)):
        expect_reported(t, made, what)
