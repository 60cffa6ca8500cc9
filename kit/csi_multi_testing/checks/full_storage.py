"""A full storage: by volumes that take all of the capacity, or by others. What exists is used, and can be deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from csi_multi.contract import Blank, OutOfRange, ResourceExhausted, SizeRange, StorageError, Unavailable, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext, pages
from ..occupied_space import filled_by_others
from ..operations.base import attempt, describe_error
from ..operations.create import SEED, source_volume
from ..protocol import Target, VolumeSpec
from .capacity import MAX_SIZE_FACTOR, largest, largest_that_is_quick, report_of_free_space
from .devices import open_device, size_of
from .sources import expect_success

FILLING = 4  # volumes at most that take what is left, where one alone cannot
SMALL = 4  # times Storage.size: less is no space for volumes before others take the rest
NOTES = ("formatting", "formatted")  # the methods that store one, in the node engine's order
NO_SPACE = (ResourceExhausted, OutOfRange)  # OutOfRange for more than any volume can have now
FULL, FULL_BY_OTHERS = "the storage is full", "others have filled the storage"


def fill_storage(t: CheckContext) -> list[Volume]:
    """Create a volume, with data where it can be written, and others that take all that is left.

    Raises CheckSkipped where that takes too long, or where volumes take nothing.
    """
    largest_that_is_quick(t)
    volumes = [source_volume(t)]
    for _ in range(FILLING):
        report = t.client.capacity()
        if largest(report) < max(1, report.minimum or 0):
            return volumes
        made, error = attempt(partial(t.volume, size=largest(report)))
        if not made:
            raise CheckSkipped(f"a volume as large as capacity() says cannot be created: {error}") from error
        volumes.append(made)
    left = t.client.capacity().available
    if left >= t.size:
        raise CheckSkipped(
            f"after {len(volumes)} volumes there are still {left} bytes, so the storage cannot be filled"
        )
    return volumes


@contextmanager
def filled_storage(t: CheckContext) -> Iterator[list[Volume]]:
    """Create two volumes, one of them with data where it can be written; in the block others take all that is left."""
    limit, least = MAX_SIZE_FACTOR * t.size, SMALL * t.size
    if report_of_free_space(t).available < least:
        raise CheckSkipped(f"capacity() reports less than {least} bytes, the space for a few volumes")
    with filled_by_others(t, limit, make=lambda: [source_volume(t), t.volume()]) as volumes:
        yield volumes


def refusal(what: str, ask: Callable[[], object], *kinds: type[StorageError]) -> Exception | None:
    """Return the error of a call, None if it succeeded. Raises CheckFailed for one that is of none of these classes."""
    _, error = attempt(ask)
    names = " or ".join(["success", *(kind.__name__ for kind in kinds)])
    if error and not isinstance(error, kinds):
        raise CheckFailed(f"{what}: raised {describe_error(error)}, the contract requires {names}") from error
    return error


def expect_used(
    t: CheckContext, volume: Volume, when: str, *kinds: type[StorageError], notes: Sequence[str] = NOTES
) -> tuple[str, ...]:
    """Use a volume as the node engine does before its first mount; what stores a note may raise one of these.

    Returns which of these notes were not stored.
    """
    has_device, handle = t.storage.devices and not t.no_data_reason(), volume.handle
    expect_success(f"get_volume while {when}", t.client.get, handle)
    unstored = []
    if not has_device or not refusal(f"open_device while {when}", lambda: open_device(t, volume), *kinds):
        for method in notes:
            store = partial(getattr(t.backend, method), handle, t.storage.secrets)
            unstored += [method] * bool(refusal(f"{method} while {when}", store, *kinds))
    else:
        unstored += notes
    if has_device:
        expect_success(f"find_device while {when}", t.backend.find_device, handle)
        expect_success(f"close_device while {when}", t.backend.close_device, handle)
    # `formatting` may be refused after `formatted`, which says more.
    return tuple(unstored) if "formatted" in unstored else ()


def expect_formatted(t: CheckContext, volume: Volume, what: str, notes: Sequence[str] = NOTES) -> None:
    """Require that these notes, which were not stored before, can be now."""
    expect_used(t, volume, what, notes=notes)
    if t.storage.devices and not t.no_data_reason():
        same(open_device(t, volume).blank, Blank.NEVER, f"formatted, {what}: Device.blank")
        t.backend.close_device(volume.handle)


def expect_read(t: CheckContext, volumes: list[Volume], when: str) -> None:
    """Require what only looks, also in a new process."""
    for process in ("", ", in a new process"):
        expect_success(f"check while {when}{process}", t.backend.check)
        expect_success(f"capacity while {when}{process}", t.client.capacity)
        if b.ListVolumes in t.features:
            listed = {one.handle for one in pages(t.client.list_volumes)}
            missing = {one.handle for one in volumes} - listed
            expect(not missing, f"list_volumes while {when}{process}: {sorted(missing)} are missing")
        expect_success(f"resume while {when}", t.client.restart)


def requests(t: CheckContext, volume: Volume) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the requests for more, with what they are called in messages."""

    def creation(spec: VolumeSpec) -> Callable[[], object]:
        return lambda: t.create(spec)

    yield "create_volume", creation(t.spec())
    if b.Clone in t.features:
        yield "clone_volume", lambda: t.copy(volume)
    if b.Snapshots in t.features:
        yield "create_snapshot", lambda: t.snapshot(volume)


def expect_no_more(t: CheckContext, volume: Volume, when: str, *kinds: type[StorageError]) -> None:
    """Require that what is refused leaves nothing, and that a refused expansion changes nothing."""
    for method, ask in requests(t, volume):
        what, before = f"{method} while {when}", t.new_resources()
        if refusal(what, ask, *kinds):
            same(t.new_resources(), before, f"{what}: refused, but the storage changed")
    if b.Expand in t.features:
        expect_not_grown(t, volume, f"expand_volume while {when}", *kinds)


def expect_not_grown(t: CheckContext, volume: Volume, what: str, *kinds: type[StorageError]) -> None:
    """Require that an expansion whose error is final, so that nobody repeats it, has changed nothing."""
    error = refusal(what, lambda: t.client.expand(volume.handle, SizeRange(required=volume.size + t.size)), *kinds)
    if not isinstance(error, NO_SPACE):
        return
    same(t.client.get(volume.handle).size, volume.size, f"{what}: refused, then the size of get_volume")
    if t.storage.devices and not t.no_data_reason():
        device, _ = attempt(lambda: open_device(t, volume))
        if device:
            same(size_of(device), volume.size, f"{what}: refused, then the size of {device.path}")
        t.backend.close_device(volume.handle)


def expect_kept(t: CheckContext, volume: Volume, when: str) -> None:
    """Require the data that the volume got before."""
    if not t.no_data_reason():
        t.expect_filled(volume, SEED, volume.size, f"a volume that was made before {when}")


@check(b.Capacity, target=Target.BACKEND)
def the_volumes_of_a_full_storage_can_be_used(t: CheckContext) -> None:
    """A note needs space too: a reserve, or a change in place. Otherwise no pod starts until something is deleted."""
    volumes = fill_storage(t)
    expect_read(t, volumes, FULL)
    for volume in volumes:
        expect_formatted(t, volume, FULL)


@check(b.Capacity, target=Target.BACKEND)
def a_full_storage_refuses_more_and_changes_nothing(t: CheckContext) -> None:
    volume, *_ = fill_storage(t)
    with t.refused(*NO_SPACE, what=f"create_volume while {FULL}"):
        t.volume()
    expect_no_more(t, volume, FULL, *NO_SPACE)
    expect_kept(t, volume, FULL)


@check(b.Capacity, target=Target.BACKEND)
def the_volumes_of_a_full_storage_can_be_deleted(t: CheckContext) -> None:
    """Only that gives space back."""
    before = largest_that_is_quick(t)
    for volume in fill_storage(t):
        expect_success(f"delete_volume while {FULL}", t.client.delete, volume.handle)
    after = t.client.capacity().available
    expect(after > before // 2, f"capacity() was {before}, and is {after} after all volumes of a full storage went")
    expect_success("create_volume after all volumes of a full storage were deleted", t.volume)


@check(b.Capacity, target=Target.BACKEND)
def volumes_beside_others_that_filled_the_storage_can_be_used(t: CheckContext) -> None:
    """A note may need space that others have: then it is Unavailable, and is stored as soon as there is space."""
    with filled_storage(t) as volumes:
        expect_read(t, volumes, FULL_BY_OTHERS)
        unstored = {one.handle: expect_used(t, one, FULL_BY_OTHERS, Unavailable) for one in volumes}
    for volume in volumes:
        expect_formatted(t, volume, "there is space again", unstored[volume.handle])
    expect_kept(t, volumes[0], FULL_BY_OTHERS)


@check(b.Capacity, target=Target.BACKEND)
def a_storage_that_others_filled_refuses_more_and_changes_nothing(t: CheckContext) -> None:
    """What is only promised may still be created."""
    with filled_storage(t) as volumes:
        expect_no_more(t, volumes[0], FULL_BY_OTHERS, *NO_SPACE, Unavailable)
    expect_kept(t, volumes[0], FULL_BY_OTHERS)


@check(b.Capacity, target=Target.BACKEND)
def volumes_beside_others_that_filled_the_storage_can_be_deleted(t: CheckContext) -> None:
    with filled_storage(t) as volumes:
        for volume in volumes:
            expect_success(f"delete_volume while {FULL_BY_OTHERS}", t.client.delete, volume.handle)
            t.forget(volume)
        expect(not t.new_resources(), f"delete_volume while {FULL_BY_OTHERS}: {sorted(t.new_resources())} remain")
