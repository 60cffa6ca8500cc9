"""Pages of volumes, beside foreign files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import (
    InvalidToken,
    PageRequest,
)

from csi_multi_filer.client import MARK

MIB = 2**20


def test_pages_are_in_order_and_survive_the_removal_of_what_they_ended_with(backend: Any, volume_request: Any) -> None:
    handles = [backend.create_volume(volume_request(f"pvc-{number}")).handle for number in (3, 1, 2)]

    first = backend.list_volumes(PageRequest(limit=2))
    backend.delete_volume(first.items[-1].handle, {})
    second = backend.list_volumes(PageRequest(cursor=first.cursor, limit=2))

    assert [one.handle for one in first.items + second.items] == sorted(handles)
    assert second.cursor == ""
    with pytest.raises(InvalidToken):
        backend.list_volumes(PageRequest(cursor="../x"))


def test_files_of_others_are_neither_listed_nor_touched(backend: Any, share: Path, volume_request: Any) -> None:
    names = [
        "notes.txt",
        "Upper.filer",
        "pvc-1.json",
        "odd.filer.bak",
        "by-hand.filer",
    ]
    for name in names:
        (share / name).write_text("mine")

    backend.resume()
    volume = backend.create_volume(volume_request("pvc-1"))
    assert backend.list_volumes(PageRequest()).items == (volume,)
    backend.delete_volume(volume.handle, {})

    assert {name: (share / name).read_text() for name in os.listdir(share) if name != MARK} == dict.fromkeys(
        names, "mine"
    )
