"""Run several calls at the same time, with a time limit."""

from __future__ import annotations

import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csi_multi.contract import StorageError
from csi_multi.core.idempotent import NOT_FINAL

from .assertions import CheckFailed, expect
from .context import BLOCK_SIZE, CheckContext
from .operations.base import describe_error

NamedCall = tuple[str, Callable[[], Any]]  # its name in messages, and the call

QUEUE_DEPTH = 32  # blocks written at the same time
MANY = 392  # random blocks: a server that mixes up requests has shown hundreds of them wrong
TIME_LIMIT = 60.0  # seconds for all of them together
SWITCH_INTERVAL = 1e-5  # seconds between two switches of Python's threads


@dataclass(frozen=True, slots=True)
class CallResult:
    label: str
    answer: Any = None
    error: Exception | None = None


def run_concurrently(acts: Sequence[NamedCall]) -> list[CallResult]:
    """Run these calls at the same time, each in a thread. Raises CheckFailed for a call that does not return."""
    barrier = threading.Barrier(len(acts))
    found: list[CallResult | None] = [None] * len(acts)

    def run(number: int, label: str, act: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            found[number] = CallResult(label, answer=act())
        except Exception as error:
            found[number] = CallResult(label, error=error)

    threads = [threading.Thread(target=run, args=(number, *act), daemon=True) for number, act in enumerate(acts)]
    with _switching_often():
        for thread in threads:
            thread.start()
        ends = time.monotonic() + TIME_LIMIT
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
    hung = [label for (label, _), outcome in zip(acts, found, strict=True) if outcome is None]
    expect(not hung, f"{' and '.join(sorted(set(hung)))}: does not return within {TIME_LIMIT:g} s")
    return [outcome for outcome in found if outcome]


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def expect_answers(t: CheckContext, outcomes: Sequence[CallResult], *allowed: type[StorageError]) -> list[Any]:
    """Return the answers. Raises CheckFailed for an error that is neither retryable nor of these classes."""
    wanted: tuple[type[StorageError], ...] = (*NOT_FINAL, *allowed)
    fine = tuple(t.client.kind_of(kind) for kind in wanted)
    for one in outcomes:
        if one.error and not isinstance(one.error, fine):
            names = ", ".join(kind.__name__ for kind in wanted)
            raise CheckFailed(
                f"{one.label}: raised {describe_error(one.error)}, the contract requires one of {names}"
            ) from one.error
    return [one.answer for one in outcomes if not one.error]


def wrong_blocks(path: Path, size: int) -> list[int]:
    """Write random blocks of a device, many at the same time and past the page cache; return those that read wrong."""
    count = size // BLOCK_SIZE
    blocks = random.Random(0).sample(range(count), min(MANY, count))  # noqa: S311 - the same ones each time
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)

    def expected(block: int) -> bytes:
        return block.to_bytes(8, "big") * (BLOCK_SIZE // 8)

    def write(block: int) -> None:
        with mmap.mmap(-1, BLOCK_SIZE) as memory:  # direct I/O needs aligned memory
            memory.write(expected(block))
            os.pwrite(descriptor, memory, block * BLOCK_SIZE)

    def is_wrong(block: int) -> bool:
        with mmap.mmap(-1, BLOCK_SIZE) as memory:
            os.preadv(descriptor, [memory], block * BLOCK_SIZE)
            return memory[:] != expected(block)

    try:
        with ThreadPoolExecutor(QUEUE_DEPTH) as pool:
            list(pool.map(write, blocks))
            os.fsync(descriptor)
            return [block for block, wrong in zip(blocks, pool.map(is_wrong, blocks), strict=True) if wrong]
    finally:
        os.close(descriptor)
