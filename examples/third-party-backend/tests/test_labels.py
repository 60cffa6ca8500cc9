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
    WrongNode,
)

MIB = 2**20


@pytest.mark.parametrize("handle", ["", "node-1", "node-1/", "node-1/../x", "node-1/A", "node-1/" + "x" * 99, "\0/a"])
def test_a_handle_that_was_never_made_here_is_not_found(handle: str, backend: Any) -> None:
    with pytest.raises(NotFound):
        backend.get_volume(handle)


def test_a_handle_does_not_lead_out_of_the_directory(memory: Path, connect: Any, volume_request: Any) -> None:
    connect(memory).create_volume(volume_request("pvc-1"))
    (memory / "below").mkdir()

    with pytest.raises(NotFound):
        connect(memory / "below").get_volume("node-1/../pvc-1")


def test_a_volume_of_another_node_is_not_taken_for_gone(backend: Any) -> None:
    with pytest.raises(WrongNode):
        backend.delete_volume("node-2/pvc-1", {})


@pytest.mark.parametrize("other", [{"driver": "other.example.com"}, {"cluster": "other"}])
def test_a_volume_of_another_driver_or_cluster_is_neither_listed_nor_touched(
    other: dict[str, str], memory: Path, connect: Any, volume_request: Any
) -> None:
    handle = connect(memory).create_volume(volume_request("pvc-1")).handle
    stranger = connect(memory, **other)

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
    assert connect(memory).get_volume(handle)


def test_a_damaged_label_is_not_a_free_name(backend: Any, memory: Path, volume_request: Any) -> None:
    handle = backend.create_volume(volume_request("pvc-1")).handle
    (memory / "pvc-1.ramdisk.json").write_text("{")

    for attempt in (lambda: backend.create_volume(volume_request("pvc-1")), lambda: backend.delete_volume(handle, {})):
        with pytest.raises(FailedPrecondition, match="is damaged"):
            attempt()
    backend.resume()
    assert (memory / "pvc-1.ramdisk").stat().st_size == MIB
