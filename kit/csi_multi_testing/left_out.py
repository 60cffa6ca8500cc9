"""What a page of a listing leaves out: what others own, and what cannot be read. It lies between our own items."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from csi_multi.contract import StorageError

from .assertions import CheckSkipped
from .context import CheckContext
from .damaged_records import new_records
from .listings import Listing
from .operations.base import attempt
from .other_owners import OTHERS, client_of
from .protocol import Target

Undo = Callable[[], object]
Make = Callable[[str], Undo]  # create something under a name -> remove it, or repair it


def foreign_volumes(t: CheckContext) -> Iterator[Make]:
    """Yield for each other owner who can use the storage how to create a volume of theirs."""
    for client in _others(t):

        def make(name: str, client: Any = client) -> Undo:
            return partial(client.delete, client.create(t.spec(name)).handle)

        yield from _if_allowed(t, make)


def foreign_snapshots(t: CheckContext) -> Iterator[Make]:
    for client in _others(t):

        def make(name: str, client: Any = client) -> Undo:
            volume = client.create(t.spec())
            with ExitStack() as undo:
                undo.callback(client.delete, volume.handle)
                undo.callback(client.delete_snapshot, client.snapshot(name, volume.handle).handle)
                return undo.pop_all().close

        yield from _if_allowed(t, make)


def _others(t: CheckContext) -> Iterator[Any]:
    if t.client.target is Target.BACKEND:
        t.volume()  # a storage may belong to whoever uses it first
        with suppress(CheckSkipped):
            for changes in OTHERS[:2]:
                yield client_of(t, changes)


def _if_allowed(t: CheckContext, make: Make) -> Iterator[Make]:
    """Yield it if it works: a storage may be of one owner only."""
    undo, error = attempt(lambda: make(t.name()))
    if undo:
        undo()
        yield make
    elif not isinstance(error, StorageError):
        raise error or AssertionError("neither an answer nor an error")


def unreadable(listing: Listing) -> Iterator[Make]:
    """Yield how to create an item whose record is damaged, if it is in small files and listings go on without it."""
    t = listing.t
    if t.client.target is not Target.BACKEND or not t.storage.records:
        return

    def make(name: str) -> Undo:
        _, records = new_records(t, lambda: listing.make(name))

        def repair() -> None:
            for file, content in records.items():
                file.write_bytes(content)

        for file, content in records.items():
            file.write_bytes(b"\0" * len(content))
        return repair

    repair = make(t.name())
    error = attempt(listing.handles)[1]
    repair()
    if error is None:
        yield make
    else:
        t.note(f"{listing.method} with a damaged record: {error}")


@contextmanager
def between(ours: Listing, layout: str, makes: list[Make]) -> Iterator[list[str]]:
    """Create an item of ours for each o of the layout, and something of `makes` for each x, under names in this order.

    Yields our handles. What is left out is removed or repaired after the block.
    """
    name, turns = ours.t.name(), itertools.cycle(makes)
    with ExitStack() as undo:
        handles = []
        for number, one in enumerate(layout):
            if one == "o":
                handles.append(ours.make(f"{name}-{number:02}").handle)
            elif makes:
                undo.callback(next(turns)(f"{name}-{number:02}"))
        yield handles
