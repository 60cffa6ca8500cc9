"""A call is paused at each of its calls to the storage, and another process makes a call meanwhile.

Two processes meet while a controller is replaced: the old one ends a call, the new one resumes and makes the next ones.
And the controller of node-local storage and the node are two processes on one machine: one deletes or expands what the
other one opens and formats. Each of two calls ends as if they had been made one after the other, or is refused and can
be repeated.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from csi_multi.contract import Blank, Busy, FailedPrecondition, InUse, NotFound, SizeRange, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, expect, same
from ..check import check
from ..concurrency import CallResult, expect_answers
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..in_process import InProcessClient
from ..interleaving import Encounter, expect_order, second_process
from ..marked_secrets import given_secrets
from ..operations.base import Operation, describe_error, expect_not_found, retry
from ..operations.change import DeleteSnapshot, DeleteVolume
from ..operations.create import SEED, source_volume
from ..protocol import Target, read_from
from .after_crash import creations
from .blanks import blank_of, volume_with_notes
from .interleaved_copies import delete_all


class BesideResume(Encounter):
    """An operation goes on while the process that takes over from it, or runs beside it, starts."""

    def __init__(self, t: CheckContext, other: InProcessClient, operation: Operation) -> None:
        super().__init__(t, other)
        self.operation = operation
        self.methods = (operation.method, "resume")

    def renew(self) -> None:
        self.operation.renew()

    def prepare(self) -> None:
        self.operation.before = self.t.resources()
        self.operation.prepare()

    def first(self) -> Any:
        return self.operation.act()

    def second(self) -> None:
        self.other.backend.resume()

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        expect_answers(self.t, [first, second])
        answer = retry(self.operation.act, f"{what}, repeated") if first.error else first.answer
        self.operation.verify(answer, what)
        self.operation.clean_up(what)


@check(target=Target.BACKEND)
def a_process_that_starts_removes_nothing_that_another_one_creates(t: CheckContext) -> None:
    with second_process(t) as other:
        for creation in creations(t):
            expect_order(BesideResume(t, other, creation))


@check(target=Target.BACKEND)
def a_deletion_ends_while_another_process_starts(t: CheckContext) -> None:
    with second_process(t) as other:
        expect_order(BesideResume(t, other, DeleteVolume(t)))
        if b.Snapshots in t.features:
            expect_order(BesideResume(t, other, DeleteSnapshot(t)))


class TwoCreations(Encounter):
    methods = ("create_volume", "create_volume of another volume")
    both = False  # they are alike

    def prepare(self) -> None:
        self.specs = self.t.spec(), self.t.spec()

    def first(self) -> Volume:
        return self.t.create(self.specs[0])

    def second(self) -> Volume:
        made = self.other.create(self.specs[1])
        self.t.register(made)
        return made

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        for spec, result in zip(self.specs, (first, second), strict=True):
            if result.error and not isinstance(result.error, Busy):
                text = (
                    f"{what}: the {'first' if result is first else 'second'} one raised {describe_error(result.error)}"
                )
                raise CheckFailed(f"{text}; calls for different volumes run at the same time") from result.error
            made = result.answer or retry(partial(self.t.create, spec), f"{what}, repeated")
            same(made.stamp.name, spec.name, f"{what}: Stamp.name")
            same(self.t.client.get(made.handle), made, f"{what}, then get_volume")
            delete_all(self.t, what, made)


@check(target=Target.BACKEND)
def two_processes_create_two_volumes(t: CheckContext) -> None:
    """A draft or a counter that all volumes share belongs to one of them only."""
    with second_process(t) as other:
        expect_order(TwoCreations(t, other))


class DeleteBesideOpen(Encounter):
    methods = ("delete_volume", "open_device")

    def prepare(self) -> None:
        self.volume = source_volume(self.t)
        self.opened = ExitStack()

    def first(self) -> None:
        self.t.client.delete(self.volume.handle)

    def second(self) -> Any:
        return self.opened.enter_context(self.other.open_device(self.volume.handle))

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        expect(
            first.error or second.error, f"{what}: both succeeded, so the device of a volume that was deleted is open"
        )
        expect_answers(self.t, [first], InUse, FailedPrecondition)
        expect_answers(self.t, [second], NotFound, InUse, FailedPrecondition)
        if second.answer:
            found = read_from(second.answer.path, 0, BLOCK_SIZE)
            expect(found == pattern(SEED), f"{what}: the device that is open does not have the volume's data")
        self.opened.close()
        delete_all(self.t, what, self.volume)
        expect_not_found(partial(self.t.client.get, self.volume.handle), f"{what}, then get_volume")

    def release(self) -> None:
        with suppress(Exception):
            self.opened.close()


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_volume_is_not_deleted_that_another_process_opens_at_any_call(t: CheckContext) -> None:
    with second_process(t) as other:
        expect_order(DeleteBesideOpen(t, other))


class ExpandBesideNote(Encounter):
    """The volume grows, and what is noted on it stays: a note that goes back lets a used volume be formatted."""

    def __init__(self, t: CheckContext, other: InProcessClient, note: str, blank: Blank) -> None:
        super().__init__(t, other)
        self.note = note
        self.blank = blank
        self.methods = ("expand_volume", note)

    def prepare(self) -> None:
        self.volume = volume_with_notes(self.t)
        self.wanted = SizeRange(required=self.volume.size + self.t.size)

    def first(self) -> int:
        return self.t.client.expand(self.volume.handle, self.wanted).size

    def second(self) -> None:
        given_secrets(self.t, getattr(self.other.backend, self.note))(self.volume.handle)

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        expect_answers(self.t, [first, second])
        size = first.answer or retry(self.first, f"{what}, repeated")
        if second.error:
            retry(self.second, f"{what}, repeated")
        same(self.t.client.get(self.volume.handle).size, size, f"{what}, then the size of get_volume")
        same(blank_of(self.t, self.volume, what), self.blank, f"{what}, then Device.blank")
        delete_all(self.t, what, self.volume)


@check(b.Expand, needs=("devices",), data=True, target=Target.BACKEND)
def an_expansion_and_a_note_of_another_process_undo_nothing(t: CheckContext) -> None:
    with second_process(t) as other:
        for note, blank in (("formatting", Blank.INTERRUPTED), ("formatted", Blank.NEVER)):
            expect_order(ExpandBesideNote(t, other, note, blank))
