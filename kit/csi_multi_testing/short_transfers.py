"""System calls that transfer a part of what was asked for, as they may at any time (copy_file_range(2), sendfile(2)).

Linux never transfers more than 2 GiB in one call, and less after a signal or at the end of a network packet. Who does
not look at the result, or does not go on after it, loses the rest without an error. Where a copy takes several calls,
something can happen between them, as it does in the middle of a large one.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

from .context import BLOCK_SIZE
from .fault_injection import Call

PIECES = 16  # of a file that is copied in several calls
# What each call gets as count, or as data of which it writes as much as it likes: place and name of the argument.
TRANSFERS = {
    "copy_file_range": (2, "count"),
    "sendfile": (3, "count"),
    "splice": (2, "count"),
    "read": (1, "length"),
    "pread": (1, "length"),
    "write": (1, "data"),
    "pwrite": (1, "buffer"),
}
COPIES = {"copy_file_range": (0, "src"), "sendfile": (1, "in_fd")}  # within the kernel; the argument: what is copied

Most = Callable[[tuple[Any, ...], dict[str, Any]], int]  # of the arguments of a call, the bytes that it moves at most


def _broken() -> Exception:
    return OSError(errno.EIO, "the kit made this call fail")


COPY_CALLS = tuple(Call(owner=os, name=name, error=_broken) for name in COPIES)


@contextmanager
def short_transfers(most: int) -> Iterator[set[str]]:
    """Let the transfers of Python's os module move this many bytes at most in the block.

    Yields the names of those that were asked for more.
    """
    shortened: set[str] = set()
    with ExitStack() as stack:
        for name in TRANSFERS:
            stack.enter_context(patch.object(os, name, _short(name, lambda *_: most, shortened)))
        yield shortened


@contextmanager
def short_copies() -> Iterator[None]:
    """During the block, the copies within the kernel copy a sixteenth of a file at most."""
    with ExitStack() as stack:
        for name, source in COPIES.items():
            stack.enter_context(patch.object(os, name, _short(name, partial(_piece, *source), set())))
        yield


def _piece(place: int, word: str, words: tuple[Any, ...], more: dict[str, Any]) -> int:
    """Return how much of a copy is made: blocks of the source, or everything where it shows no size, as a device."""
    size = os.fstat(words[place] if len(words) > place else more[word]).st_size
    return -(-size // PIECES // BLOCK_SIZE) * BLOCK_SIZE or sys.maxsize


def _short(name: str, most_of: Most, shortened: set[str]) -> Callable[..., int]:
    real, (place, word) = getattr(os, name), TRANSFERS[name]

    def less(wanted: Any, most: int) -> Any:
        size = wanted if isinstance(wanted, int) else memoryview(wanted).nbytes
        if size <= most:
            return wanted
        shortened.add(name)
        return most if isinstance(wanted, int) else memoryview(wanted).cast("B")[:most]

    @wraps(real)
    def transfer(*words: Any, **more: Any) -> Any:
        most = most_of(words, more)
        if len(words) > place:
            words = (*words[:place], less(words[place], most), *words[place + 1 :])
        elif word in more:
            more[word] = less(more[word], most)
        return real(*words, **more)

    return transfer
