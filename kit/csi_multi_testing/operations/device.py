"""Operations on the node: a volume's device, and the notes before and after it is formatted."""

from __future__ import annotations

import os
from typing import Any

from csi_multi.contract import Attach, Backend, Blank, Device, OpenRequest, SizeRange, Strings

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..context import BLOCK_SIZE, pattern
from ..counting import expect_nothing_left
from ..marked_secrets import given_secrets
from ..protocol import read_from
from .base import attempt
from .change import DATA, VolumeOperation


class DeviceOperation(VolumeOperation):
    """Works on a volume that this node uses."""

    def prepare(self) -> None:
        super().prepare()
        self.attach_here()

    def attach_here(self) -> None:
        self.context: Strings | None = None  # while the volume is attached nowhere
        for node in self.t.storage.nodes if Attach in self.t.features else ():
            if node.name == self.t.backend.setting.node:
                self.context = self.t.attach(self.volume, node)

    def open(self) -> Device:
        self.t.close_at_end(self.volume)
        request = OpenRequest(
            handle=self.volume.handle, block=True, publish_context=self.context or {}, secrets=self.t.storage.secrets
        )
        device: Device = self.t.backend.open_device(request)
        return device

    def found(self) -> Device | None:
        device: Device | None = self.t.backend.find_device(self.volume.handle)
        return device

    def verify_usable(self, what: str) -> None:
        """Require that the open device, if there is one, has the volume's data."""
        device, error = attempt(self.found)
        expect(error is None, f"{what}: find_device raised {error!r}")
        if device:
            expect(read_from(device.path, 0, BLOCK_SIZE) == pattern(DATA), f"{what}: {device.path} has other data")

    def remove(self) -> None:
        self.t.backend.close_device(self.volume.handle)
        if self.context is not None:
            self.t.client.detach(self.volume.handle, None)
        super().remove()


class OpenDevice(DeviceOperation):
    method = "open_device"

    def act(self) -> Device:
        return self.open()

    def verify(self, answer: Any, what: str) -> None:
        found = self.found()
        same((found.path, found.number) if found else None, (answer.path, answer.number), f"{what}: find_device")
        self.verify_usable(what)

    def is_unchanged(self) -> bool:
        return self.found() is None


class CloseDevice(DeviceOperation):
    method = "close_device"

    def prepare(self) -> None:
        super().prepare()
        self.closed = self.t.resources()
        self.open()

    def act(self) -> None:
        self.t.backend.close_device(self.volume.handle)

    def verify(self, answer: Any, what: str) -> None:
        same(self.found(), None, f"{what}: find_device")
        expect_nothing_left(self.t, self.closed, what)

    def is_unchanged(self) -> bool:
        return self.found() is not None


class RefreshDevice(DeviceOperation):
    method = "refresh_device"

    def prepare(self) -> None:
        super().prepare()
        self.open()
        self.size = self.t.client.expand(self.volume.handle, SizeRange(required=2 * self.t.size)).size

    def act(self) -> None:
        given_secrets(self.t, self.t.backend.refresh_device)(self.volume.handle)

    def verify(self, answer: Any, what: str) -> None:
        device = self.found()
        if device is None:
            raise CheckFailed(f"{what}: find_device no longer finds the device")
        with device.path.open("rb") as file:
            same(file.seek(0, os.SEEK_END), self.size, f"{what}: the size of the device")
        self.verify_usable(what)

    def is_unchanged(self) -> bool:
        return False  # the device may have been refreshed when it grew


class NoteFormatting(DeviceOperation):
    method = "formatting"
    wanted = Blank.INTERRUPTED

    def prepare(self) -> None:
        if getattr(type(self.t.backend), self.method) is getattr(Backend, self.method):
            raise CheckSkipped(f"{self.method} is not overridden, which the checks of blanks refuse")
        self.volume = self.t.volume()
        self.attach_here()
        self.fresh = self.blank()

    def blank(self) -> Blank:
        device = self.open()
        self.t.backend.close_device(self.volume.handle)
        return device.blank

    def act(self) -> None:
        given_secrets(self.t, self.t.backend.formatting)(self.volume.handle)

    def verify_usable(self, what: str) -> None:
        blank, error = attempt(self.blank)
        expect(error is None, f"{what}: open_device raised {error!r}")
        known = (self.fresh, self.wanted)
        expect(blank in known, f"{what}: Device.blank is {blank}, the contract requires one of {known}")

    def verify(self, answer: Any, what: str) -> None:
        same(self.blank(), self.wanted, f"{what}: Device.blank")

    def is_unchanged(self) -> bool:
        return self.blank() is self.fresh


class NoteFormatted(NoteFormatting):
    method = "formatted"
    wanted = Blank.NEVER

    def prepare(self) -> None:
        super().prepare()
        given_secrets(self.t, self.t.backend.formatting)(self.volume.handle)
        self.fresh = self.blank()

    def act(self) -> None:
        given_secrets(self.t, self.t.backend.formatted)(self.volume.handle)
