"""Backends with wrong devices, and the checks that find it. The devices are real."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, devices
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import MIB

from csi_multi.contract import (
    Blank,
    Device,
    OpenRequest,
    Strings,
    missing,
)
from csi_multi.host import loopdev
from csi_multi.host.loopfile import LoopDevices, device_of
from tests.host.qemu_export import exported

from .loop_devices import ROOTS, Looped, Telling, looped

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    while ROOTS:
        root = ROOTS.pop()
        for device, file in loopdev.bound_devices().items():
            if file.startswith(f"{root}/"):
                os.system(f"losetup --detach {device}")
        shutil.rmtree(root)


class Remembering(Looped):
    """Knows what this process opened."""

    def open_device(self, request: OpenRequest) -> Device:
        device = super().open_device(request)
        vars(self).setdefault("open", set()).add(request.handle)
        return device

    def find_device(self, handle: str) -> Device | None:
        return super().find_device(handle) if handle in vars(self).get("open", ()) else None


class Eager(Looped):
    """Opens what it is asked to find."""

    def find_device(self, handle: str) -> Device | None:
        return self.open_device(OpenRequest(handle=handle))


class Clinging(Looped):
    """Closes nothing."""

    def close_device(self, handle: str) -> None:
        """Later, perhaps."""


class Multiplying(Looped):
    """Attaches one more device each time."""

    def open_device(self, request: OpenRequest) -> Device:
        path = loopdev.attach(self.setting.host, self.file(request.handle))
        return device_of(path, self.blank(request.handle))


class Discarding(Looped):
    """Throws the bytes away with the device."""

    def close_device(self, handle: str) -> None:
        super().close_device(handle)
        if handle in self.storage.volumes:
            os.truncate(self.file(handle), 0)
            os.truncate(self.file(handle), self.get_volume(handle).size)


class OneForAll(Looped):
    """Has one device for all volumes."""

    def open_device(self, request: OpenRequest) -> Device:
        return super().open_device(replace(request, handle=min(self.storage.volumes)))


class Miscounting(Telling):
    def reported(self, device: Device) -> Device:
        return replace(device, number="7:4095")


class Unproven(Telling):
    def reported(self, device: Device) -> Device:
        return replace(device, proof={})


class Misproven(Telling):
    """Expects what it asked for, which the kernel spells otherwise."""

    def reported(self, device: Device) -> Device:
        return replace(device, proof={"loop/backing_file": Path(device.proof["loop/backing_file"]).name})


class Plain(Telling):
    """Hands out the file, and not a device."""

    def reported(self, device: Device) -> Device:
        return replace(device, path=Path(device.proof["loop/backing_file"]))


class Writable(Looped):
    """Does not look at read_only."""

    def open_device(self, request: OpenRequest) -> Device:
        return super().open_device(replace(request, read_only=False))


class Pretending(Looped):
    """Takes read_only for a property of what it answers."""

    def open_device(self, request: OpenRequest) -> Device:
        return replace(super().open_device(replace(request, read_only=False)), read_only=request.read_only)


class Making(Looped):
    """Makes what it is to open."""

    def open_device(self, request: OpenRequest) -> Device:
        with self.file(request.handle).open("a") as file:
            file.truncate(MIB)
        return device_of(self.loops.open(self.file(request.handle)), Blank.NEVER)


class Insisting(Looped):
    """Closes volumes that exist."""

    def close_device(self, handle: str) -> None:
        if handle not in self.storage.volumes:
            raise missing("volume", handle)
        super().close_device(handle)


class Ruthless(Looped):
    """Deletes what is in use."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        self.storage.attached.pop(handle, None)
        MemoryBackend.delete_volume(self, handle, secrets)
        self.file(handle).unlink()


class Unrefreshed(Looped):
    def refresh_device(self, handle: str) -> None:
        """The kernel will see."""


class Mixing(Looped):
    """Insists on direct I/O where the server of the file mixes up what is written at the same time."""

    exports: ClassVar[dict[str, ExitStack]] = {}

    def open_device(self, request: OpenRequest) -> Device:
        file, shown = self.file(request.handle), self.root / f"{request.handle}.shown"
        loops = LoopDevices(self.setting.host, direct_io=True)
        export = self.exports.setdefault(request.handle, ExitStack())
        export.callback(shown.unlink)
        export.enter_context(exported(file, shown))
        export.callback(loops.close, shown)
        return device_of(loops.open(shown), Blank.NEVER)

    def close_device(self, handle: str) -> None:
        self.exports.pop(handle, ExitStack()).close()


GROUPS = ("devices", "blanks", "health")


BROKEN = [
    (devices.a_device_is_found_while_it_is_open, looped(Eager), "find_device before open_device: found Device"),
    (devices.a_device_is_found_while_it_is_open, looped(Clinging), "close_device, then find_device: found Device"),
    (devices.opening_twice_gives_the_same_device, looped(Multiplying), "open_device, a second time: found"),
    (devices.blocks_written_at_the_same_time_are_read_back, looped(Mixing), "blocks that were written to /dev/loop"),
    (devices.written_data_survives_closing_the_device, looped(Discarding), "has other data than was"),
    (devices.two_volumes_have_different_devices, looped(OneForAll), "Device.path of both is"),
    (devices.the_proof_of_a_device_matches_the_kernel, looped(Plain), "is not a block device"),
    (
        devices.the_proof_of_a_device_matches_the_kernel,
        looped(Miscounting),
        "Device.number, compared with the number of",
    ),
    (devices.the_proof_of_a_device_matches_the_kernel, looped(Unproven), "Device.proof is empty"),
    (devices.the_proof_of_a_device_matches_the_kernel, looped(Misproven), "loop/backing_file holds: found '/"),
    (devices.a_device_opened_read_only_refuses_writes, looped(Writable), "Device.read_only: found False"),
    (devices.a_device_opened_read_only_refuses_writes, looped(Pretending), "accepts writes"),
    (devices.an_open_device_is_found_after_a_restart, looped(Remembering), "find_device after a restart: found"),
    (devices.a_deleted_volume_has_no_device, looped(Making), "succeeded, the contract requires NotFound"),
    (devices.a_deleted_volume_has_no_device, looped(Insisting), "close_device of a volume that was deleted"),
    (devices.a_volume_whose_device_is_open_is_not_deleted, looped(Ruthless), "the contract requires InUse"),
    (devices.an_open_device_grows_with_its_volume, looped(Unrefreshed), "found 1048576, the contract requires 2097152"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group in GROUPS])
def test_loop_devices_pass(judged: Any, name: str) -> None:
    outcome = judged(CHECKS[name].body, looped(Looped))

    assert outcome.state is CheckState.PASSED, outcome.text
