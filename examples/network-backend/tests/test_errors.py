"""Errors of system calls are never taken for a missing volume."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import (
    NotFound,
    Unavailable,
)

from csi_multi_filer.client import MARK
from csi_multi_filer.errors import translated

MIB = 2**20


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.ENOSPC])
def test_an_error_is_unavailable_and_names_the_action_and_the_file(number: int) -> None:
    text = f"reading a volume failed: /mnt/nfs/x: {os.strerror(number)}; check the shared directory"
    with pytest.raises(Unavailable, match=f"^{text}$"), translated("reading a volume"):
        raise OSError(number, os.strerror(number), "/mnt/nfs/x")


def test_a_half_deleted_volume_is_no_volume_and_gone_after_the_retry(
    backend: Any, share: Path, volume_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = backend.create_volume(volume_request("pvc-1")).handle
    (share / "pvc-1.filer.json.new").touch()  # of a label that was interrupted
    unlink = Path.unlink
    removed: list[Path] = []

    def failing(path: Path, **names: Any) -> None:
        if removed:
            raise OSError(errno.EIO, "no more")
        removed.append(path)
        unlink(path, **names)

    monkeypatch.setattr(Path, "unlink", failing)
    with pytest.raises(Unavailable):
        backend.delete_volume(handle, {})
    monkeypatch.undo()

    with pytest.raises(NotFound):
        backend.get_volume(handle)
    backend.delete_volume(handle, {})

    assert os.listdir(share) == [MARK]
