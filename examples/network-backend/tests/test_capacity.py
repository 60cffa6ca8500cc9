"""The reported capacity can be created, and no more. Needs root for a small share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import (
    CapacityRequest,
    ExpandRequest,
    ResourceExhausted,
    SizeRange,
)

from csi_multi_filer.client import MARK, Client

MIB = 2**20


@pytest.mark.root
def test_the_capacity_can_be_created_and_a_full_share_is_reported(
    small_share: Path, connect: Any, volume_request: Any
) -> None:
    backend = connect(small_share)
    source = backend.create_volume(volume_request("source", MIB)).handle
    available = backend.capacity(CapacityRequest()).available

    assert 6 * MIB < available < 7 * MIB
    with pytest.raises(ResourceExhausted):
        backend.create_volume(volume_request("larger", available + 1))
    backend.create_volume(volume_request("exact", available))
    assert backend.capacity(CapacityRequest()).available == 0
    for attempt in (
        lambda: backend.create_volume(volume_request("more", 4096)),
        lambda: backend.clone_volume(volume_request("copy", of=source)),
        lambda: backend.expand_volume(ExpandRequest(handle=source, size=SizeRange(required=2 * MIB))),
    ):
        with pytest.raises(ResourceExhausted):
            attempt()
    backend.formatting(source)  # there is always space for a format state
    assert sorted({name.partition(".")[0] for name in os.listdir(small_share) if name != MARK}) == ["exact", "source"]
    assert backend.get_volume(source).size == MIB


@pytest.mark.root
def test_space_that_another_process_took_meanwhile_is_reported_as_full(
    small_share: Path, connect: Any, volume_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "available", lambda _: 100 * MIB)  # as it was before another process took it

    with pytest.raises(ResourceExhausted):
        connect(small_share).create_volume(volume_request("pvc-1", 16 * MIB))

    assert os.listdir(small_share) == [MARK]
