"""The records of a resource in Storage.records, each overwritten with zeros in turn: by a power failure, or by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from csi_multi.contract import NotFound

from .assertions import CheckSkipped, expect
from .context import CheckContext, pattern
from .operations.base import attempt, describe_error
from .operations.create import SEED
from .storage_contents import small_files

T = TypeVar("T")
Records = dict[Path, bytes]  # small files, with their content


def with_records(t: CheckContext, make: Callable[[], T]) -> tuple[T, Records]:
    """Return what is made, and the small files that this wrote, without those that hold the data of a volume.

    Raises CheckSkipped where there are none.
    """
    before = small_files(t.storage.records)
    made = make()
    after = small_files(t.storage.records)
    records = {
        file: content
        for file, content in after.items()
        if before.get(file) != content and content.strip(b"\0") and pattern(SEED) not in content
    }
    if not records:
        raise CheckSkipped("no small file was written below Storage.records")
    return made, records


def new_records(t: CheckContext, make: Callable[[], T]) -> tuple[T, Records]:
    """Return what is made, and the small files that it brought."""
    before = small_files(t.storage.records)
    made = make()
    after = small_files(t.storage.records)
    return made, {file: content for file, content in after.items() if content and file not in before}


def damaged(t: CheckContext, records: Records) -> Iterator[str]:
    """Damage one record after the other, twice each: before and after a start of the driver. Yields what happened.

    Raises CheckFailed if the driver removed records at its start.
    """
    for file, content in records.items():
        file.write_bytes(b"\0" * len(content))
        what = f"{file.name} was overwritten with zeros"
        yield what
        attempt(t.client.restart)
        what = f"{what}, and the driver was started again"
        lost = sorted(str(one) for one in records if not one.exists())
        expect(not lost, f"{what}: it removed {lost}")
        yield what
        file.write_bytes(content)


def expect_not_absent(act: Callable[[], T], method: str, what: str) -> T | None:
    """Require an answer, or another error than NotFound. Returns the answer."""
    answer, error = attempt(act)
    problem = f"{method} raised {describe_error(error)}" if isinstance(error, NotFound) else ""
    expect(not problem, f"{what}: {problem}; the contract requires another error, or success")
    return answer
