"""Backends with wrong devices, and the checks that find it. The devices are real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, devices
from csi_multi_testing.dead_devices import are_gone, dead_devices
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import MIB

from csi_multi.contract import (
    NO_SECRETS,
    Blank,
    CommandFailed,
    Device,
    ExpandRequest,
    Expansion,
    OpenRequest,
    Strings,
    Unavailable,
    missing,
)
from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost
from csi_multi.host.loopfile import device_of

from . import attached_files
from .loop_devices import Discarding, Looped, Mixing, Telling, looped, remove_devices

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


class Remembering(Looped):
    """Knows what this process opened."""

    def open_device(self, request: OpenRequest) -> Device:
        device = super().open_device(request)
        vars(self).setdefault("open", set()).add(request.handle)
        return device

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        return super().find_device(handle) if handle in vars(self).get("open", ()) else None


class Eager(Looped):
    """Opens what it is asked to find."""

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        return self.open_device(OpenRequest(handle=handle))


class Clinging(Looped):
    """Closes nothing."""

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        """Later, perhaps."""


class Multiplying(Looped):
    """Attaches one more device each time."""

    def open_device(self, request: OpenRequest) -> Device:
        path = loopdev.attach(self.setting.host, self.file(request.handle))
        return device_of(path, self.blank(request.handle))


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


class WritableForFilesystems(Looped):
    """Leaves it to mount, which may replay a journal."""

    def open_device(self, request: OpenRequest) -> Device:
        return super().open_device(replace(request, read_only=request.read_only and request.block))


class GrowingOnce(Looped):
    """Says only once that the node has something to do."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        before = self.get_volume(request.handle).size
        done = super().expand_volume(request)
        return replace(done, node_required=done.size > before)


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

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
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
    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        """The kernel will see."""


GROUPS = ("devices", "blanks", "health")


class StatsAll(Looped):
    """Looks at the file of every loop device of the machine, and expects that it is there."""

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        for file in loopdev.bound_devices().values():
            try:
                Path(file).stat()
            except OSError as error:
                raise Unavailable(f"cannot look at {file}: {error}") from None
        return super().find_device(handle)


class ReadsAll(Looped):
    """Reads a label from every loop device of the machine."""

    def open_device(self, request: OpenRequest) -> Device:
        for device in loopdev.bound_devices():
            with device.open("rb") as file:
                try:
                    file.read(512)
                except OSError as error:
                    raise Unavailable(f"cannot read {device}: {error}") from None
        return super().open_device(request)


class ByName(Looped):
    """Takes every device whose file has the volume's name for the volume's."""

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        for device, file in loopdev.bound_devices().items():
            if Path(file).name == self.file(handle).name:
                return device_of(device, self.blank(handle))
        return super().find_device(handle)


class Tidy(Looped):
    """Detaches what has no file any more."""

    def resume(self) -> None:
        for device, file in loopdev.bound_devices().items():
            if file.endswith(" (deleted)") and "csi-multi-kit-" in file:
                loopdev.detach(self.setting.host, device)


class Recycling(Looped):
    """Uses for itself the device of what has no file any more."""

    def resume(self) -> None:
        for device, file in loopdev.bound_devices().items():
            if file.endswith(" (deleted)") and "csi-multi-kit-" in file:
                loopdev.detach(self.setting.host, device)
                self.setting.host.run("truncate", "--size=1M", str(self.root / "own"))
                with suppress(CommandFailed):  # another program was quicker
                    self.setting.host.run("losetup", str(device), str(self.root / "own"))
                return


BROKEN = [
    (
        devices.a_volume_that_was_detached_while_its_device_is_open_is_not_deleted,
        lambda: attached_files.storage(attached_files.TrustsAttachments),
        "was detached while its device is open: succeeded",
    ),
    (devices.dead_loop_devices_of_somebody_else_change_nothing, looped(Recycling), "somebody else were detached"),
    (devices.dead_loop_devices_of_somebody_else_change_nothing, looped(StatsAll), "raised Unavailable (cannot look at"),
    (devices.dead_loop_devices_of_somebody_else_change_nothing, looped(ReadsAll), "cannot read /dev/loop"),
    (devices.dead_loop_devices_of_somebody_else_change_nothing, looped(ByName), "find_device of an existing volume"),
    (devices.dead_loop_devices_of_somebody_else_change_nothing, looped(Tidy), "somebody else were detached"),
    (devices.a_device_is_found_while_it_is_open, looped(Eager), "find_device before open_device: found Device"),
    (devices.a_device_is_found_while_it_is_open, looped(Clinging), "close_device, then find_device: found Device"),
    (devices.opening_twice_gives_the_same_device, looped(Multiplying), "open_device, a second time: found"),
    (devices.blocks_written_at_the_same_time_are_read_back, looped(Mixing), "blocks that were written to /dev/loop"),
    (devices.blocks_written_at_the_same_time_are_read_back, looped(Discarding), "after the device was closed and"),
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
    (
        devices.a_device_opened_read_only_for_a_filesystem_refuses_writes,
        looped(WritableForFilesystems),
        "Device.read_only: found False",
    ),
    (devices.an_open_device_grows_with_its_volume, looped(GrowingOnce), "its node never learns the new size"),
    (devices.an_open_device_is_found_after_a_restart, looped(Remembering), "find_device after a restart: found"),
    (devices.a_deleted_volume_has_no_device, looped(Making), "succeeded, the contract requires NotFound"),
    (devices.a_deleted_volume_has_no_device, looped(Insisting), "close_device of a volume that was deleted"),
    (devices.a_volume_whose_device_is_open_is_not_deleted, looped(Ruthless), "the contract requires InUse"),
    (devices.an_open_device_grows_with_its_volume, looped(Unrefreshed), "found 1048576, the contract requires 2097152"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_dead_device_whose_number_is_given_again_is_left_to_its_new_owner(tmp_path: Path) -> None:
    host, file = LocalHost(), tmp_path / "of somebody else"
    host.run("truncate", "--size=1M", str(file))
    with dead_devices("kit") as theirs:
        for device in theirs:  # a program that runs beside the tests may be quicker
            loopdev.detach(host, device)
            if host.run("losetup", str(device), str(file), ok=(0, 1)).status == 0:
                break
        else:
            pytest.skip("other programs have taken the numbers of all devices")
        assert set(are_gone(theirs)) == {device}

    shown = loopdev.bound_devices()
    assert shown.pop(device) == str(file)
    loopdev.detach(host, device)
    assert not [one for number, one in theirs.items() if shown.get(number) == one.backing]


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group in GROUPS])
def test_loop_devices_pass(judged: Any, name: str) -> None:
    outcome = judged(CHECKS[name].body, looped(Looped))

    lacking = ("Storage.files not given", "Storage.records not given", "Storage.also_damage not given")
    assert outcome.state is CheckState.PASSED or outcome.text in lacking, outcome.text
