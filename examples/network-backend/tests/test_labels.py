"""Labels and handles: own volumes, foreign ones, and damaged labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import (
    AlreadyExists,
    ExpandRequest,
    FailedPrecondition,
    NotFound,
    PageRequest,
    SizeRange,
)

from csi_multi_filer.client import MARK

MIB = 2**20


@pytest.mark.parametrize("handle", ["", "A", "../x", "node-1/x", "x" * 99, "a\0"])
def test_a_handle_that_was_never_made_here_is_not_found(handle: str, backend: Any) -> None:
    with pytest.raises(NotFound):
        backend.get_volume(handle)


def test_a_handle_does_not_lead_out_of_the_directory(share: Path, connect: Any, volume_request: Any) -> None:
    connect(share).create_volume(volume_request("pvc-1"))
    (share / "below").mkdir()
    (share / "below" / MARK).touch()

    with pytest.raises(NotFound):
        connect(share / "below").get_volume("../pvc-1")


@pytest.mark.parametrize("other", [{"driver": "other.example.com"}, {"cluster": "other"}])
def test_a_volume_of_another_driver_or_cluster_is_neither_listed_nor_touched(
    other: dict[str, str], share: Path, connect: Any, volume_request: Any
) -> None:
    handle = connect(share).create_volume(volume_request("pvc-1")).handle
    stranger = connect(share, **other)

    assert stranger.list_volumes(PageRequest()).items == ()
    for attempt in (
        lambda: stranger.delete_volume(handle, {}),
        lambda: stranger.clone_volume(volume_request("copy", of=handle)),
        lambda: stranger.expand_volume(ExpandRequest(handle=handle, size=SizeRange(required=2 * MIB))),
    ):
        with pytest.raises(FailedPrecondition, match="give each driver its own directory"):
            attempt()
    with pytest.raises(AlreadyExists):
        stranger.create_volume(volume_request("pvc-1"))
    stranger.resume()
    assert connect(share).get_volume(handle)


def test_a_damaged_label_is_not_a_free_name(backend: Any, share: Path, volume_request: Any) -> None:
    handle = backend.create_volume(volume_request("pvc-1")).handle
    (share / "pvc-1.filer.json").write_text("{")

    for attempt in (lambda: backend.create_volume(volume_request("pvc-1")), lambda: backend.delete_volume(handle, {})):
        with pytest.raises(FailedPrecondition, match="is damaged"):
            attempt()
    backend.resume()
    assert (share / "pvc-1.filer").stat().st_size == MIB


def test_an_image_that_nothing_shows_to_be_ours_is_never_removed(
    share: Path, connect: Any, volume_request: Any
) -> None:
    (share / "by-hand.filer").write_bytes(b"data")
    (share / "half.filer").write_bytes(b"half")
    (share / "half.filer.json.new").write_text("{")
    connect(share).create_volume(volume_request("theirs"))
    (share / "theirs.filer.json").rename(share / "theirs.filer.json.new")
    stranger = connect(share, driver="other.example.com")

    stranger.resume()
    for leaf in ("by-hand", "half", "theirs"):
        with pytest.raises(FailedPrecondition, match="restore its label, or move it away"):
            stranger.delete_volume(leaf, {})
        with pytest.raises(AlreadyExists):
            stranger.create_volume(volume_request(leaf))
        with pytest.raises(NotFound):
            stranger.get_volume(leaf)

    assert (share / "by-hand.filer").read_bytes() == b"data"
    assert (share / "half.filer").read_bytes() == b"half"
    assert (share / "theirs.filer").stat().st_size == MIB
