"""Random blocks of a device or a file, written and read many at the same time and past the page cache."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .context import BLOCK_SIZE

QUEUE_DEPTH = 32  # blocks at the same time
MANY = 392  # a server that mixes up requests has shown hundreds of them wrong

WriteBlock = Callable[[int], object]
IsWrong = Callable[[int], bool]


def random_blocks(size: int) -> list[int]:
    """Return the numbers of blocks of a device or file of this size, the same ones each time."""
    count = size // BLOCK_SIZE
    return random.Random(0).sample(range(count), min(MANY, count))  # noqa: S311


def write_blocks(path: Path, blocks: Sequence[int]) -> list[int]:
    """Write these blocks, and read half of them meanwhile; return those that are read wrong."""
    first, second = blocks[::2], blocks[1::2]
    with _opened(path) as (write, is_wrong), _pool() as writers, _pool() as readers:
        list(writers.map(write, first))
        found = readers.map(is_wrong, first)
        list(writers.map(write, second))
        return [block for block, wrong in zip(first, found, strict=True) if wrong]


def wrong_blocks(path: Path, blocks: Sequence[int]) -> list[int]:
    """Return those of these blocks that do not hold what write_blocks has written."""
    with _opened(path, os.O_RDONLY) as (_, is_wrong), _pool() as readers:
        return [block for block, wrong in zip(blocks, readers.map(is_wrong, blocks), strict=True) if wrong]


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(QUEUE_DEPTH)


@contextmanager
def _opened(path: Path, flags: int = os.O_RDWR) -> Iterator[tuple[WriteBlock, IsWrong]]:
    """Yield what writes a block, and what tells whether its content is another; at the end everything is synced."""
    descriptor = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC)

    def content(block: int) -> bytes:
        return block.to_bytes(8, "big") * (BLOCK_SIZE // 8)

    def write(block: int) -> None:
        with mmap.mmap(-1, BLOCK_SIZE) as memory:  # direct I/O needs aligned memory
            memory.write(content(block))
            os.pwrite(descriptor, memory, block * BLOCK_SIZE)

    def is_wrong(block: int) -> bool:
        with mmap.mmap(-1, BLOCK_SIZE) as memory:
            os.preadv(descriptor, [memory], block * BLOCK_SIZE)
            return memory[:] != content(block)

    try:
        yield write, is_wrong
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
