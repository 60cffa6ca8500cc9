"""Copies that the kernel makes in one call take several, and are complete."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from csi_multi_testing.fault_injection import FaultInjector
from csi_multi_testing.short_transfers import COPY_CALLS, short_copies

SIZE = 1 << 20


def test_a_file_is_copied_in_sixteen_pieces(tmp_path: Path) -> None:
    data = os.urandom(SIZE)
    tmp_path.joinpath("source").write_bytes(data)
    injector = FaultInjector()

    with short_copies(), injector.around(COPY_CALLS), injector.inject(0):
        shutil.copyfile(tmp_path / "source", tmp_path / "sent")
    assert injector.calls.count("sendfile") in (16, 17)  # the last one says that it is the end
    with (
        short_copies(),
        tmp_path.joinpath("source").open("rb") as source,
        tmp_path.joinpath("copied").open("wb") as target,
    ):
        counts = [os.copy_file_range(source.fileno(), target.fileno(), SIZE) for _ in range(16)]

    assert counts == [SIZE // 16] * 16
    assert tmp_path.joinpath("sent").read_bytes() == tmp_path.joinpath("copied").read_bytes() == data


def test_afterwards_copies_are_made_as_before() -> None:
    before = (os.copy_file_range, os.sendfile)

    with short_copies():
        assert os.sendfile is not before[1]

    assert (os.copy_file_range, os.sendfile) == before
