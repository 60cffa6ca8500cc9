"""A copy is paused at each of its calls to the storage, while another process writes, copies or deletes its source.

Two processes meet while a controller is replaced: the old one ends a copy, the new one makes the next calls. And the
controller of node-local storage and the node are two processes on one machine: one copies what the other one opens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from csi_multi.contract import FailedPrecondition, InUse, NotFound, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import expect
from ..check import check
from ..concurrency import CallResult, expect_answers
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..in_process import InProcessClient
from ..interleaving import Encounter, expect_order, second_process
from ..operations.base import attempt, is_not_found, retry, wait_until_ready
from ..operations.create import SEED, source_volume
from ..protocol import Target, read_from, write_to
from .filesystems import mounted, new_filesystem, require_programs, size_for_a_filesystem
from .in_use import Cloning, Copying, Snapshotting


def delete_all(t: CheckContext, what: str, *resources: Volume | Snapshot) -> None:
    """Delete these in this order, once they are detached; they must be deletable now."""
    for one in resources:
        if isinstance(one, Volume):
            retry(partial(t.detach, one), f"{what}, then the end of the attachment of {one.handle!r}")
        delete = t.client.delete if isinstance(one, Volume) else t.client.delete_snapshot
        retry(partial(delete, one.handle), f"{what}, then the deletion of {one.handle!r}")
        t.forget(one)


class HeadAndTailWrites:
    """Writes to the first and the last block of something, and its states before and after each of them."""

    def __init__(self, end: int) -> None:
        """`end` is the offset of the last block."""
        self.end = end
        self.states = [(pattern(SEED), pattern(f"{SEED} tail"))]

    def fill(self, write: Callable[[int, bytes], object]) -> None:
        """Write the first state."""
        for offset, block in zip((0, self.end), self.states[0], strict=True):
            write(offset, block)

    def make(self, write: Callable[[int, bytes], object]) -> None:
        """Write to the head, to the tail, and to the head again: a copy in either direction would show a mixture."""
        for number, tail in enumerate((False, True, False), start=1):
            block, (head, end) = pattern(f"kit write {number}"), self.states[-1]
            self.states.append((head, block) if tail else (block, end))
            write(self.end if tail else 0, block)

    def expect_state(self, found: Sequence[bytes], what: str, most: int = 3) -> None:
        """Require these blocks, the first and the last one, of one point in time, after `most` writes at most."""
        expect(
            tuple(found) in self.states[: most + 1],
            f"{what}: the copy is of no point in time that it may be of: its first block {self._moment(found[0])}, its "
            f"last one {self._moment(found[1])}",
        )

    def _moment(self, block: bytes) -> str:
        found = [number for number, state in enumerate(self.states) if block in state]
        return f"is as it was after write {found[0]} of 3" if found else "was never written"


class Restoring(Copying):
    """A new snapshot is restored; it has no later write."""

    method = "restore_volume"

    def call(self, t: CheckContext, volumes: Sequence[Volume]) -> partial[Any]:
        self.snapshot = wait_until_ready(t, t.snapshot(volumes[0]))
        return partial(t.copy, self.snapshot, t.name())

    def images(self, t: CheckContext, answer: Volume) -> dict[str, Volume]:
        return {self.snapshot.source: answer}

    def remove(self, t: CheckContext, answer: Any) -> None:
        delete_all(t, self.method, self.snapshot)


class CopyBesideWrites(Encounter):
    """A copy holds the writes of another process up to one of them."""

    both = False

    def __init__(self, t: CheckContext, other: InProcessClient, copying: Copying) -> None:
        super().__init__(t, other)
        self.copying = copying
        self.methods = (copying.method, "open_device and writes")

    def prepare(self) -> None:
        self.volume = self.t.volume()
        self.writes = HeadAndTailWrites(self.volume.size - BLOCK_SIZE)
        self.t.fill(self.volume, SEED)
        self.copy = self.copying.call(self.t, [self.volume])

    def first(self) -> Any:
        return self.copy()

    def second(self) -> None:
        if write := self.t.storage.write:
            self.writes.make(partial(write, self.volume.handle))
            return
        with self.other.device_path(self.volume.handle) as path:
            self.writes.make(partial(write_to, path))

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        expect_answers(self.t, [first, second], FailedPrecondition)
        answer = first.answer or retry(self.copy, f"{what}, repeated")
        [image] = self.copying.images(self.t, answer).values()
        found = self.t.read_pieces(image, (0, BLOCK_SIZE), (self.writes.end, BLOCK_SIZE))
        self.writes.expect_state(found, what, 0 if isinstance(self.copying, Restoring) else 3)
        delete_all(self.t, what, image)
        self.copying.remove(self.t, answer)
        delete_all(self.t, what, self.volume)


@check(b.Clone, data=True, target=Target.BACKEND)
def a_clone_is_of_one_point_in_time_if_another_process_writes_at_any_call(t: CheckContext) -> None:
    with second_process(t) as other:
        expect_order(CopyBesideWrites(t, other, Cloning()))


@check(b.Snapshots, data=True, target=Target.BACKEND)
def a_snapshot_is_of_one_point_in_time_if_another_process_writes_at_any_call(t: CheckContext) -> None:
    with second_process(t) as other:
        expect_order(CopyBesideWrites(t, other, Snapshotting()))


@check(b.Snapshots, data=True, target=Target.BACKEND)
def a_restored_volume_is_its_snapshot_if_another_process_writes_at_any_call(t: CheckContext) -> None:
    with second_process(t) as other:
        expect_order(CopyBesideWrites(t, other, Restoring()))


class CopyBesideDelete(Encounter):
    """The copy has the data, or is refused; and the deletion is complete, or is refused."""

    def __init__(self, t: CheckContext, other: InProcessClient, copying: Copying) -> None:
        super().__init__(t, other)
        self.copying = copying
        self.methods = (copying.method, "delete_volume of its source")

    def prepare(self) -> None:
        self.volume = source_volume(self.t)
        self.copy = self.copying.call(self.t, [self.volume])

    def first(self) -> Any:
        return self.copy()

    def second(self) -> None:
        self.other.delete(self.volume.handle)

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        expect_answers(self.t, [first], NotFound, InUse, FailedPrecondition)
        expect_answers(self.t, [second], InUse, FailedPrecondition)
        is_gone = is_not_found(partial(self.t.client.get, self.volume.handle))
        expect(is_gone or second.error, f"{what}: the deletion succeeded, and get_volume finds the volume")
        if is_gone:  # then a copy that was refused may be complete, or impossible for ever
            answer = first.answer or attempt(self.copy)[0]
        else:
            answer = first.answer or retry(self.copy, f"{what}, repeated")
        if answer:
            expect_whole_copy(self.t, self.copying, answer, self.volume, what)
        delete_all(self.t, what, self.volume)


def expect_whole_copy(t: CheckContext, copying: Copying, answer: Any, volume: Volume, what: str) -> None:
    """Require that a copy has the data of the volume, and delete the copy."""
    [image] = copying.images(t, answer).values()
    if not t.no_data_reason():
        t.expect_filled(image, SEED, volume.size, f"{what}, then the copy")
    delete_all(t, what, image)
    copying.remove(t, answer)


@check(b.Snapshots, target=Target.BACKEND)
def a_snapshot_is_whole_if_another_process_deletes_its_source_at_any_call(t: CheckContext) -> None:
    with second_process(t) as other:
        expect_order(CopyBesideDelete(t, other, Snapshotting()))


@check(b.Clone, target=Target.BACKEND)
def a_clone_is_whole_if_another_process_deletes_its_source_at_any_call(t: CheckContext) -> None:
    with second_process(t) as other:
        expect_order(CopyBesideDelete(t, other, Cloning()))


class SnapshotBesideSnapshot(Encounter):
    """Two snapshots with two names are both whole."""

    methods = ("create_snapshot", "create_snapshot of the volume with another name")
    both = False  # it is the same call

    def prepare(self) -> None:
        self.volume = source_volume(self.t)
        self.names = (self.t.name("snapshot"), self.t.name("snapshot"))

    def first(self) -> Snapshot:
        return self.t.snapshot(self.volume, self.names[0])

    def second(self) -> Snapshot:
        return self.other.snapshot(self.names[1], self.volume.handle)

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        expect_answers(self.t, [first, second])
        for one, name in zip((first, second), self.names, strict=True):
            made = one.answer or retry(partial(self.t.snapshot, self.volume, name), f"{what}, repeated")
            self.t.register(made)
            expect_whole_copy(self.t, Snapshotting(), made, self.volume, what)
        delete_all(self.t, what, self.volume)


@check(b.Snapshots, target=Target.BACKEND)
def two_processes_create_two_snapshots_of_a_volume(t: CheckContext) -> None:
    with second_process(t) as other:
        expect_order(SnapshotBesideSnapshot(t, other))


class MountedBesideSnapshot(Encounter):
    """The second snapshot must not end what keeps the filesystem still for the first one."""

    methods = ("create_snapshot of a mounted volume", "another snapshot of it, and writes")
    both = False

    def prepare(self) -> None:
        self.held = ExitStack()
        self.volume = self.t.volume(size=size_for_a_filesystem(self.t))
        self.names = (self.t.name("snapshot"), self.t.name("snapshot"))
        device = self.held.enter_context(self.t.client.device_path(self.volume.handle))
        self.file = self.held.enter_context(new_filesystem(device)) / "kit"
        self.end = self.volume.size // 4 // BLOCK_SIZE * BLOCK_SIZE
        self.writes = HeadAndTailWrites(self.end)
        with self.file.open("wb") as file:  # the blocks between the two ends take a while to copy
            file.write(pattern("kit between", self.end))
            file.flush()
            os.fsync(file.fileno())
        self.writes.fill(partial(write_to, self.file))

    def first(self) -> Snapshot:
        return self.t.snapshot(self.volume, self.names[0])

    def second(self) -> Snapshot | None:
        made, error = attempt(lambda: self.other.snapshot(self.names[1], self.volume.handle))
        if made:
            self.t.register(made)
        self.writes.make(partial(write_to, self.file))
        if error:
            raise error
        return made

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        expect_answers(self.t, [first, second], FailedPrecondition)
        self.held.close()
        made = first.answer or retry(self.first, f"{what}, repeated when it is not mounted")
        image = self.t.copy(wait_until_ready(self.t, made))
        with self.t.client.device_path(image.handle) as device, mounted(device, "-o", "ro") as directory:
            found = [read_from(directory / self.file.name, offset, BLOCK_SIZE) for offset in (0, self.end)]
        self.writes.expect_state(found, what)
        delete_all(self.t, what, image, made, *([second.answer] if second.answer else []), self.volume)

    def release(self) -> None:
        with suppress(Exception):
            self.held.close()


@check(b.Snapshots, needs=("devices",), data=True, target=Target.BACKEND)
def two_processes_create_two_snapshots_of_a_mounted_filesystem(t: CheckContext) -> None:
    require_programs()
    with second_process(t) as other:
        expect_order(MountedBesideSnapshot(t, other))
