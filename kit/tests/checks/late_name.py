"""A backend that writes the name of a volume in a later call, which tests use."""

from __future__ import annotations

import uuid
from dataclasses import replace

from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    AlreadyExists,
    Volume,
    VolumeRequest,
)


class NameLater(MemoryBackend):
    """Makes the volume under a random name and renames it: a retry does not know what is half-made."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.name in {one.stamp.name for one in self.storage.volumes.values()}:
            raise AlreadyExists(request.name)
        draft = super().create_volume(replace(request, stamp=replace(request.stamp, name=uuid.uuid4().hex)))
        made = replace(draft, stamp=request.stamp)
        self.storage.put(self.storage.volumes, made.handle, made)
        return made

    def find_volume(self, name: str) -> Volume:
        found = [handle for handle, one in self.storage.volumes.items() if one.stamp.name == name]
        return self.get_volume(found[0] if found else name)
