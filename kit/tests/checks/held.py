"""A correct backend over files that several nodes reach, whose volumes one node at a time has open; tests break it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from csi_multi.contract import NO_SECRETS, Device, FailedPrecondition, NotFound, OpenRequest, Strings

from .file_backend import OPEN, FileBackend, failures


class Held(FileBackend):
    """The holder of a volume is in a file beside its data. Correct."""

    opens_exclusively = True

    def holder_file(self, handle: str) -> Path:
        return self._entry("volumes", handle) / "holder"

    def holder(self, handle: str) -> str:
        """Return the node that has the volume open, "" for none."""
        with failures(), suppress(FileNotFoundError):
            return self.holder_file(handle).read_text()
        return ""

    def refuse_held(self, handle: str) -> None:
        if self.holder(handle) not in ("", self.setting.node):
            raise FailedPrecondition(f"volume {handle!r} is open on node {self.holder(handle)!r}; unstage it there")

    def hold(self, handle: str) -> None:
        with self._locked():
            self.refuse_held(handle)
            self.holder_file(handle).write_text(self.setting.node)

    def open_device(self, request: OpenRequest) -> Device:
        self.get_volume(request.handle)
        self.hold(request.handle)
        return super().open_device(request)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        found = super().find_device(handle)
        return found if self.holder(handle) == self.setting.node else None

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        with self._locked(), suppress(NotFound):
            if self.holder(handle) == self.setting.node:
                (self.root / OPEN / handle).unlink(missing_ok=True)
                self.holder_file(handle).unlink()
