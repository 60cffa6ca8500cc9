"""Numbered writes to volumes that are open, made while something else is asked of their backend.

Each write is durable before the next one begins, and each place gets its writes in a fixed turn. So the content of all
places follows from the number of writes alone: an image of one point in time holds the first N writes, for some N.
Before a place is written again, it is read: a write that was lost would not be seen afterwards.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from csi_multi.contract import Volume

from .assertions import CheckFailed, expect
from .concurrency import switching_often
from .context import BLOCK_SIZE, CheckContext
from .writing_thread import WritingThread

PLACES = 128  # at most, of each volume
FEWEST = 4  # of each volume, however slow a write is
FILL_TIME = 0.2  # seconds in which every place is written once; on slow storage there are fewer places

Exchange = Callable[[int, bytes], bytes]  # write a block at an offset, durable at the return, and return the old one
Opener = Callable[[], AbstractContextManager[Exchange]]


class Place(NamedTuple):
    handle: str
    offset: int

    def block(self, number: int) -> bytes:
        """Return what this write puts here."""
        head = number.to_bytes(8, "big") + hashlib.shake_128(self.handle.encode()).digest(8)
        return head * (BLOCK_SIZE // len(head))

    def number_in(self, block: bytes) -> int | None:
        """Return the number of the write that put this here; None if no single write did."""
        number = int.from_bytes(block[:8], "big")
        return number if block == self.block(number) else None


class NumberedWrites(WritingThread):
    """Writes to several volumes in turn."""

    when = "while the volume is open"

    def __init__(self, volumes: Sequence[Volume], openers: Mapping[str, Opener]) -> None:
        super().__init__()
        self.few = FEWEST * len(openers)
        self._openers = openers
        self._writers: dict[str, Exchange] = {}
        self._places = list(_places(volumes))

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Write every place once, then go on."""
        with ExitStack() as stack:
            self._writers = {handle: stack.enter_context(open_it()) for handle, open_it in self._openers.items()}
            ends, count = time.monotonic() + FILL_TIME, len(self._writers)
            for number in range(len(self._places)):
                if time.monotonic() > ends and number % count == 0 and number >= FEWEST * count:
                    del self._places[number:]
                    break
                self.make(number)
            yield

    def expect_prefix(self, t: CheckContext, images: Mapping[str, Volume], first: int, last: int, what: str) -> None:
        """Require that these images hold, by the handles of their origins, all writes up to one of first to last."""
        blocks = self._read(t, images)
        numbers = [place.number_in(block) for place, block in zip(self._places, blocks, strict=True)]
        for place, number in zip(self._places, numbers, strict=True):
            expect(
                number is not None,
                f"{what}: {BLOCK_SIZE} bytes at offset {place.offset} of {place.handle!r} are of no write to it",
            )
        newest = max(one for one in numbers if one is not None)
        for at, number in enumerate(numbers):
            wanted = newest - (newest - at) % len(numbers)
            expect(
                number == wanted,
                f"{what}: {self._place(at)} has other data than write {wanted} (it has {number}), which was durable "
                f"before write {newest} began; that one is there, at {self._place(newest)}",
            )
        expect(
            newest >= first,
            f"{what}: the newest write in it is {newest}; write {first} was durable before the call and is missing",
        )
        expect(newest <= last, f"{what}: it holds write {newest}, which began after the call had returned")

    def _place(self, number: int) -> str:
        place = self._places[number % len(self._places)]
        return f"offset {place.offset} of {place.handle!r}"

    def _read(self, t: CheckContext, images: Mapping[str, Volume]) -> list[bytes]:
        found: dict[Place, bytes] = {}
        for handle, image in images.items():
            places = [place for place in self._places if place.handle == handle]
            found |= zip(places, t.read_pieces(image, *((one.offset, BLOCK_SIZE) for one in places)), strict=True)
        return [found[place] for place in self._places]

    def write(self, number: int) -> None:
        place = self._places[number % len(self._places)]
        before = self._writers[place.handle](place.offset, place.block(number))
        last = number - len(self._places)
        if last >= 0 and before != place.block(last):
            raise CheckFailed(f"{self._place(number)} has other data than write {last}, the last one to it")


def _places(volumes: Sequence[Volume]) -> Iterator[Place]:
    """Yield places all over the volumes, of each in turn. Not in the order in which a copy would read them."""
    count = min(PLACES, *(one.size // BLOCK_SIZE for one in volumes))
    for slot in random.Random(0).sample(range(count), count):  # noqa: S311 - the same ones each time
        for volume in volumes:
            yield Place(volume.handle, slot * (volume.size // BLOCK_SIZE // count) * BLOCK_SIZE)


def opens_devices(t: CheckContext) -> bool:
    """Whether volumes are written by their devices, and not by Storage.write."""
    return not (t.storage.read and t.storage.write)


@contextmanager
def numbered_writes(t: CheckContext, volumes: Sequence[Volume], *, cached: bool) -> Iterator[NumberedWrites]:
    """Open these volumes and write to them during the block: past the page cache, or through it and with fsync."""
    with ExitStack() as stack:
        openers = {one.handle: stack.enter_context(_opener(t, one, cached)) for one in volumes}
        writes = NumberedWrites(volumes, openers)
        stack.enter_context(switching_often())
        stack.callback(writes.stop)
        writes.start()
        yield writes


@contextmanager
def _opener(t: CheckContext, volume: Volume, cached: bool) -> Iterator[Opener]:
    if t.storage.read and t.storage.write:
        exchange = partial(_exchange, t.storage.read, t.storage.write, volume.handle)
        yield lambda: nullcontext(exchange)
        return
    with t.client.device_path(volume.handle) as path:
        yield partial(_opened, path, cached)


@contextmanager
def _opened(path: Path, cached: bool) -> Iterator[Exchange]:
    how = 0 if cached else os.O_DIRECT | os.O_DSYNC
    with mmap.mmap(-1, BLOCK_SIZE) as memory:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | how)

        def exchange(offset: int, block: bytes) -> bytes:
            os.preadv(descriptor, [memory], offset)  # direct I/O needs aligned memory
            before, memory[:] = memory[:], block
            os.pwrite(descriptor, memory, offset)
            if cached:
                os.fsync(descriptor)
            return before

        try:
            yield exchange
        finally:
            os.close(descriptor)


def _exchange(read: Any, write: Any, handle: str, offset: int, block: bytes) -> bytes:
    before: bytes = read(handle, offset, BLOCK_SIZE)
    write(handle, offset, block)
    return before
