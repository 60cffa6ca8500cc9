"""A correct backend over files whose volumes have a parameter that can be modified."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from csi_multi.contract import Doc, ModifyRequest, Schema, Volume, VolumeRequest
from csi_multi.contract import backend as b

from .file_backend import VOLUMES, FileBackend, failures


class MutableParameters(Schema, frozen=True):
    iops: Annotated[int, Doc("operations per second")] | None = None


class Limited(FileBackend, b.Modify):
    MutableParameters = MutableParameters

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        if request.mutable:
            self.limit(made.handle, request.mutable.iops)
        return made

    def modify_volume(self, request: ModifyRequest) -> None:
        self.get_volume(request.handle)
        self.limit(request.handle, request.mutable.iops)

    def limit(self, handle: str, iops: int) -> None:
        draft = self._entry(VOLUMES, handle) / ".iops"
        with failures():
            draft.write_text(str(iops))
            self.sync(draft)
            draft.rename(draft.with_name("iops"))
            self.sync(draft.parent)


def fsync(path: Path) -> None:
    """Write a file or the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
