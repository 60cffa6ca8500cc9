"""Every process creates the backend anew, and the backend keeps no state in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import (
    AlreadyExists,
)

MIB = 2**20


def test_a_volume_is_there_for_every_later_process(
    backend: Any, memory: Path, connect: Any, volume_request: Any
) -> None:
    made = backend.create_volume(volume_request("pvc-1", MIB - 1))

    assert made.size == MIB, "rounded up to whole pages"
    assert made.stamp == volume_request("pvc-1").stamp
    assert connect(memory).get_volume(made.handle) == connect(memory).find_volume("pvc-1") == made
    with pytest.raises(AlreadyExists):
        backend.create_volume(volume_request("pvc-1"))
