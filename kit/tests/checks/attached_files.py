"""A correct backend over files whose volumes must be attached while they are open, and until then are not."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from csi_multi_testing.storage import Storage

from csi_multi.contract import (
    AttachRequest,
    Device,
    FailedPrecondition,
    InUse,
    Node,
    NotFound,
    OpenRequest,
    Strings,
    Volume,
    VolumeRequest,
    missing,
)
from csi_multi.contract import backend as b

from . import file_backend
from .file_backend import FileBackend

ATTACHED = "attached"
NODES = tuple(Node(name=name, id=name) for name in ("node-1", "node-2"))


class Attached(FileBackend, b.Attach):
    """Keeps a file per attachment. It opens no device of a volume without one, and deletes no volume with one."""

    def attach(self, request: AttachRequest) -> Strings:
        with self._locked():
            self.get_volume(request.handle)
            if request.node.name not in [one.name for one in NODES]:
                raise NotFound(f"there is no node {request.node.name!r}")
            if (holder := self._holder(request.handle)) not in ("", request.node.name):
                raise FailedPrecondition(f"volume {request.handle!r} is attached to {holder!r}")
            (self.root / ATTACHED / request.handle).write_text(request.node.name)
        return {}

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        with self._locked():
            holder = self._holder(handle)
            if not holder or (node and node.name != holder):
                raise missing("attachment", handle)
            (self.root / ATTACHED / handle).unlink()

    def open_device(self, request: OpenRequest) -> Device:
        if self._holder(request.handle) != self.setting.node:
            self.get_volume(request.handle)
            raise FailedPrecondition(f"volume {request.handle!r} is not attached to this node")
        return super().open_device(request)

    def refuse_open(self, handle: str) -> None:
        super().refuse_open(handle)
        if self._holder(handle):
            raise InUse(f"volume {handle!r} is attached")

    def _holder(self, handle: str) -> str:
        return (self.root / ATTACHED / handle).read_text() if handle in os.listdir(self.root / ATTACHED) else ""


class RefusesToCopy(Attached):
    """Correct: copies nothing that is attached, because a controller does not see who has it open."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        if self._holder(request.source.handle):
            raise InUse(f"volume {request.source.handle!r} is attached")
        return super().clone_volume(request)


class TrustsAttachments(Attached):
    """Looks for an open device only of a volume that is attached."""

    def refuse_open(self, handle: str) -> None:
        if self._holder(handle):
            super().refuse_open(handle)


class OpensAnywhere(Attached):
    """Opens what is attached, to whichever node."""

    def open_device(self, request: OpenRequest) -> Device:
        return FileBackend.open_device(self, request)


class AttachesReadOnly(Attached, b.ReadOnlyAttach):
    """Correct: what was attached read-only is opened so, whatever is asked for."""

    def attach(self, request: AttachRequest) -> Strings:
        return {**super().attach(request), "readOnly": str(request.read_only)}

    def open_device(self, request: OpenRequest) -> Device:
        read_only = request.read_only or request.publish_context["readOnly"] == "True"
        return replace(super().open_device(request), read_only=read_only)


class OpensWritable(AttachesReadOnly):
    """Opens the device as the request says."""

    def open_device(self, request: OpenRequest) -> Device:
        return replace(super().open_device(request), read_only=request.read_only)


def storage(kind: type[Attached] = Attached, **given: Any) -> Storage:
    made = file_backend.storage(kind, nodes=NODES, **given)
    (made.files[0] / ATTACHED).mkdir()
    return made
