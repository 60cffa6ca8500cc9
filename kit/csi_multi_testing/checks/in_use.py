"""What is asked of a backend while its volumes are open and written, as most are when they are copied or changed.

A snapshot or a clone is of one point in time: it holds every write that was durable before the call, none that began
after the call had returned, and of those between the first ones without a gap. Where the backend cannot do that, it
refuses (contract.Snapshots, contract.Clone).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from csi_multi.contract import FailedPrecondition, SizeRange, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..marked_secrets import given_secrets
from ..numbered_writes import NumberedWrites, numbered_writes, opens_devices
from ..operations.base import retry, wait_until_ready
from ..protocol import Target
from .sources import is_served

CUTS = 50  # of a check that is complete (Storage.complete)
FEWEST_CUTS = 2  # of a volume, however slow they are
SECONDS = 0.5  # in which more of them are made


@dataclass(frozen=True, slots=True)
class Cut:
    """What a call has copied, and between which writes."""

    answer: Any
    first: int  # the last write that was durable before the call
    last: int  # the last write that was begun before it returned


DELETIONS = 8  # of snapshots of one volume that is written


class Copying(ABC):
    """A method that copies volumes as they are at one point in time."""

    method: ClassVar[str]
    count: ClassVar[int] = 1  # of volumes that it copies at once
    seconds: ClassVar[float] = SECONDS

    @abstractmethod
    def call(self, t: CheckContext, volumes: Sequence[Volume]) -> partial[Any]:
        """Return the call, which can be repeated; its last argument is the requested name."""

    @abstractmethod
    def images(self, t: CheckContext, answer: Any) -> dict[str, Volume]:
        """Return volumes with the copied data, by the handles of their origins."""

    def remove(self, t: CheckContext, answer: Any) -> None:  # noqa: B027 - a clone is its own image
        """Remove what the call made."""


class Snapshotting(Copying):
    method = "create_snapshot"

    def call(self, t: CheckContext, volumes: Sequence[Volume]) -> partial[Any]:
        return partial(t.snapshot, volumes[0], t.name("snapshot"))

    def images(self, t: CheckContext, answer: Snapshot) -> dict[str, Volume]:
        return {answer.source: t.copy(wait_until_ready(t, answer))}

    def remove(self, t: CheckContext, answer: Snapshot) -> None:
        if is_served(t, t.client.delete_snapshot, answer.handle):
            t.forget(answer)


class Cloning(Copying):
    method = "clone_volume"

    def call(self, t: CheckContext, volumes: Sequence[Volume]) -> partial[Any]:
        return partial(t.copy, volumes[0], t.name())

    def images(self, t: CheckContext, answer: Volume) -> dict[str, Volume]:
        assert answer.stamp.source
        return {answer.stamp.source.handle: answer}


class Grouping(Copying):
    method = "create_group_snapshot"
    count = 2
    seconds = 2 * SECONDS

    def call(self, t: CheckContext, volumes: Sequence[Volume]) -> partial[Any]:
        return partial(t.group, volumes, t.name("group"))

    def images(self, t: CheckContext, answer: Any) -> dict[str, Volume]:
        return {one.source: t.copy(wait_until_ready(t, one)) for one in answer.snapshots}

    def remove(self, t: CheckContext, answer: Any) -> None:
        if is_served(t, t.client.delete_group, answer.handle):
            t.forget(answer)


def ways(t: CheckContext) -> dict[str, bool]:
    """Return how volumes are written, and whether that is through the page cache."""
    return (
        {"": False}
        if t.storage.read and t.storage.write
        else {" past the page cache": False, " through the page cache": True}
    )


def expect_one_point_in_time(t: CheckContext, copying: Copying) -> None:
    count = sum(_copies(t, copying, way, cached=cached) for way, cached in ways(t).items())
    t.note(f"{count} copies at one point in time" if count else f"{copying.method}: refused while the device is open")


def _copies(t: CheckContext, copying: Copying, way: str, *, cached: bool) -> int:
    """Copy volumes that are written; return how often. Others follow where one can have few snapshots."""
    count, most = 0, CUTS // len(ways(t))
    while count < most:
        wanted = min(most - count, t.storage.snapshots or most)
        found = _copies_of_new_volumes(t, copying, way, wanted, cached=cached)
        count += found
        if found < wanted or not t.storage.complete:
            break
    return count


def _copies_of_new_volumes(t: CheckContext, copying: Copying, way: str, most: int, *, cached: bool) -> int:
    """The last copy is compared after the device was closed, the others while it is written."""
    what = f"{copying.method} while its {'volumes are' if copying.count > 1 else 'volume is'} written{way}"
    volumes = [t.volume() for _ in range(copying.count)]
    count, kept = 0, None
    with written(t, volumes, what, cached=cached) as writes:
        for cut in _cuts(t, copying, volumes, writes, what, most):
            if kept:
                _compare(t, copying, kept, writes, what)
            kept, count = cut, count + 1
    if kept:
        _compare(t, copying, kept, writes, what)
    return count


def _cuts(
    t: CheckContext, copying: Copying, volumes: Sequence[Volume], writes: NumberedWrites, what: str, most: int
) -> Iterator[Cut]:
    """Copy the volumes again and again, until the call is refused."""
    ends = time.monotonic() + copying.seconds / len(ways(t))
    for number in range(most):
        if number >= FEWEST_CUTS and not t.storage.complete and time.monotonic() > ends:
            return
        first = writes.done
        answer = retry(partial(unless_refused, t, copying.call(t, volumes)), what)
        cut = Cut(answer, first, writes.begun)
        writes.wait_for_more(what)
        if answer is None:
            return
        yield cut


def unless_refused(t: CheckContext, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except t.client.kind_of(FailedPrecondition):  # InUse is one of them
        return None


def _compare(t: CheckContext, copying: Copying, cut: Cut, writes: NumberedWrites, what: str) -> None:
    images = copying.images(t, cut.answer)
    writes.expect_prefix(t, images, cut.first, cut.last, f"{what}, then the copy")
    for image in images.values():
        if is_served(t, t.client.delete, image.handle):
            t.forget(image)
    copying.remove(t, cut.answer)


@contextmanager
def written(t: CheckContext, volumes: Sequence[Volume], what: str, *, cached: bool) -> Iterator[NumberedWrites]:
    """Write to these volumes during the block; then require that they hold every write."""
    with numbered_writes(t, volumes, cached=cached) as writes:
        yield writes
        writes.wait_for_more(what)
    writes.expect_no_error(what)
    all_of_it = {one.handle: one for one in volumes}
    writes.expect_prefix(t, all_of_it, writes.done, writes.done, f"{what}, then the volume, closed and opened again")


@check(b.Snapshots, data=True)
def a_snapshot_of_a_volume_in_use_is_of_one_point_in_time_or_refused(t: CheckContext) -> None:
    expect_one_point_in_time(t, Snapshotting())


@check(b.Snapshots, data=True)
def deletions_of_snapshots_keep_what_is_written_meanwhile(t: CheckContext) -> None:
    """A deletion collects what nothing needs any more, and a write on its way is needed."""
    for way, cached in ways(t).items():
        volume, what = t.volume(), f"delete_snapshot while the volume is written{way}"
        with written(t, [volume], what, cached=cached) as writes:
            for _ in range(min(DELETIONS, t.storage.snapshots or DELETIONS)):
                made = retry(partial(unless_refused, t, Snapshotting().call(t, [volume])), what)
                if made is None:
                    raise CheckSkipped("create_snapshot is refused while the device is open")
                writes.wait_for_more(what)
                retry(partial(t.client.delete_snapshot, made.handle), what)
                t.forget(made)


@check(b.Clone, data=True)
def a_clone_of_a_volume_in_use_is_of_one_point_in_time_or_refused(t: CheckContext) -> None:
    expect_one_point_in_time(t, Cloning())


@check(b.GroupSnapshots, data=True)
def a_group_of_volumes_in_use_is_of_one_point_in_time_or_refused(t: CheckContext) -> None:
    """The volumes are written in turn, so the newest writes that two members hold are neighbours."""
    expect_one_point_in_time(t, Grouping())


@check(b.Expand, data=True, target=Target.BACKEND)
def an_expansion_keeps_what_is_written_meanwhile(t: CheckContext) -> None:
    if not t.backend.online:
        raise CheckSkipped("the backend expands only volumes that are not in use (Expand.online is False)")
    for way, cached in ways(t).items():
        volume, what = t.volume(), f"expand_volume of a volume that is written{way}"
        wanted = SizeRange(required=volume.size + t.size)
        with written(t, [volume], what, cached=cached):
            done = retry(partial(t.client.expand, volume.handle, wanted), what)
            if done.node_required and opens_devices(t):
                retry(
                    partial(given_secrets(t, t.backend.refresh_device), volume.handle), f"{what}, then refresh_device"
                )

        found = t.client.get(volume.handle).size
        expect(wanted.required <= done.size == found, f"{what}: to {done.size} bytes, get_volume has {found}")
        t.write(volume, pattern("kit end"), done.size - BLOCK_SIZE)
        last = t.read(volume, BLOCK_SIZE, done.size - BLOCK_SIZE)
        expect(last == pattern("kit end"), f"{what}, closed and opened again: what is written to its new end is lost")


@check(b.Modify, needs=("other_mutable",), data=True)
def a_modification_keeps_what_is_written_meanwhile(t: CheckContext) -> None:
    volume, what = t.volume(), "modify_volume of a volume that is written"
    with written(t, [volume], what, cached=False):
        retry(partial(t.client.modify, volume.handle, dict(t.storage.other_mutable or {})), what)

    expect(t.client.get(volume.handle).size == volume.size, f"{what}: its size has changed")
