"""Growth and changes of type and performance: one ModifyVolume for all that is asked for at nearly one time.

EC2 lets a volume be changed few times a day and not while a change is going on, and a claim's size and
class often change in one edit, which arrives as two calls. So the first waits a moment for the second.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from csi_multi.contract import InvalidArgument, SizeRange, Timeout, Unavailable, missing

from . import tags, types
from .account import MANY, Account
from .config import MutableParameters
from .ec2_errors import Cooldown
from .rows import ModificationRow, VolumeRow
from .types import Spec
from .watch import Watch

BEGUN = ("optimizing", "completed")  # the new size and performance are there


@dataclass
class Wish:
    """What is asked of one volume, gathered from two calls, and what each is answered."""

    ends: float
    size: int | None = None  # GiB
    mutable: MutableParameters | None = None
    grown: Future[VolumeRow] = field(default_factory=Future)
    modified: Future[VolumeRow] = field(default_factory=Future)


class Changing:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._guard = threading.Lock()
        self._wishes: dict[str, Wish] = {}  # by volume: open for another call to join
        self._watch: Watch[ModificationRow] = Watch(
            account.ec2.modifications, most=MANY, first=account.config.poll_seconds
        )

    def expand(self, handle: str, wanted: SizeRange, ends: float) -> VolumeRow:
        """Grow to a whole number of GiB. Raises OutOfRange, NotFound, and FailedPrecondition in the cooldown."""
        row = self._account.volume(handle)
        size = types.gib(row.type, wanted)
        if row.size >= size:
            return row
        return self._join(row, Wish(ends, size=size)).grown.result()

    def modify(self, handle: str, mutable: MutableParameters, ends: float) -> VolumeRow:
        """Change type, performance and tags. Raises InvalidArgument, NotFound, FailedPrecondition."""
        row = self._account.volume(handle)
        return self._join(row, Wish(ends, mutable=mutable)).modified.result()

    def _join(self, row: VolumeRow, asked: Wish) -> Wish:
        """Put a wish to what is asked of the volume by another call now; the first of them does it all."""
        with self._guard:
            wish = self._wishes.setdefault(row.id, asked)
            wish.size = wish.size if asked.size is None else asked.size
            wish.mutable = wish.mutable if asked.mutable is None else asked.mutable
        if wish is asked:
            time.sleep(self._account.config.merge_seconds)
            with self._guard:
                del self._wishes[row.id]
            self._fulfil(row, wish)
        return wish

    def _fulfil(self, row: VolumeRow, wish: Wish) -> None:
        """Do both at once. What is wrong with a class must not keep the volume from growing."""
        done: Future[VolumeRow] = Future()
        try:
            done.set_result(self._change(row, wish.size, wish.mutable, wish.ends))
        except InvalidArgument as error:
            wish.modified.set_exception(error)
            if wish.size and wish.mutable:
                return self._fulfil(row, replace(wish, mutable=None, modified=Future()))
            done.set_exception(error)
        except BaseException as error:
            done.set_exception(error)
        for one in (wish.grown, wish.modified):
            if not one.done():
                _copy(done, one)
        return None

    def _change(self, row: VolumeRow, size: int | None, mutable: MutableParameters | None, ends: float) -> VolumeRow:
        """Change the volume, then its tags: what EC2 refuses has then changed nothing."""
        ec2 = self._account.ec2
        wanted = types.changed(row, mutable, size)
        more, fewer = tags.of_change(mutable, row.tags) if mutable else ({}, [])
        if wanted:
            try:
                ec2.modify(row.id, wanted)
            except Cooldown as error:
                last = ec2.modifications([row.id]).get(row.id)
                if last is None or not _is(last, wanted) or last.state == "failed":
                    raise Cooldown(f"volume {row.id!r} cannot be changed now: {_when(last)} ({error})") from error
                # An earlier call, of a process that died maybe, has begun this very change.
        if more:
            ec2.tag([row.id], more)
        if fewer:
            ec2.untag([row.id], fewer)
        return self._await(row.id, wanted, ends) if wanted else row

    def _await(self, handle: str, wanted: Spec, ends: float) -> VolumeRow:
        """Return the volume when it is as wanted: EC2 may go on telling of an earlier change for a moment."""
        account = self._account
        try:
            last = self._watch.wait(
                handle, lambda row: row is not None and _is(row, wanted) and row.state in (*BEGUN, "failed"), ends
            )
            if last and last.state == "failed":
                raise Unavailable(f"EC2 could not change volume {handle!r}: {last.message}; try again")
            row = account.watch.wait(handle, lambda row: row is None or row.size >= wanted.size, ends)
        except Timeout as error:
            raise Unavailable(f"the change of volume {handle!r} goes on: {error}") from error
        if row is None:
            raise missing("volume", handle)
        return row


def _is(last: ModificationRow, wanted: Spec) -> bool:
    """Whether this is the change that is wanted."""
    return (
        (last.type, last.size) == (wanted.type, wanted.size)
        and wanted.iops in (None, last.iops)
        and wanted.throughput in (None, last.throughput)
    )


def _when(last: ModificationRow | None) -> str:
    """When a volume that EC2 refuses to change may be changed again."""
    if last and last.state in ("modifying", "optimizing"):
        return (
            f"its change to {last.size} GiB of type {last.type} is {last.state}, and EC2 makes one at a time; come "
            "back when that is completed, after minutes to a day"
        )
    return "EC2 makes few changes of a volume in 24 hours; come back some hours, at most a day, after the last one"


def _copy(done: Future[VolumeRow], to: Future[VolumeRow]) -> None:
    if error := done.exception():
        to.set_exception(error)
    else:
        to.set_result(done.result())
