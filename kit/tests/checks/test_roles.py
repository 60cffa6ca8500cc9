"""Backends that confuse controller and node, and the checks that find it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.check import CHECKS, CheckState, Outcome
from csi_multi_testing.checks import roles
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    NO_SECRETS,
    Device,
    FailedPrecondition,
    InUse,
    NotFound,
    OpenRequest,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    VolumeRequest,
)

from .file_backend import OPEN, VOLUMES, FileBackend, over_files
from .held import Held
from .loop_devices import Looped, looped, remove_devices

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


class Trusting(Held):
    """Takes what this process does not know for what is not so."""

    def refuse_open(self, handle: str) -> None:
        if self.setting.serves_node:
            super().refuse_open(handle)


class TrustingOfItsNode(Held):
    """Knows of other nodes only."""

    def refuse_open(self, handle: str) -> None:
        if self.setting.serves_node or self.holder(handle) != self.setting.node:
            super().refuse_open(handle)


class Unattached(MemoryBackend):
    """Looks for attachments in the process that attaches."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if self.setting.serves_node:
            self.get_volume(handle)
        else:
            self.storage.attached.pop(handle, None)
        super().delete_volume(handle, secrets)


class Releasing(Held):
    """Starts with nothing open."""

    def resume(self) -> None:
        super().resume()
        for name in os.listdir(self.root / VOLUMES):
            with suppress(NotFound):
                if not self.setting.serves_node:
                    self.holder_file(name).unlink(missing_ok=True)


class Sweeping(Held):
    """Removes what this process has not opened."""

    def check(self) -> None:
        super().check()
        for name in os.listdir(self.root / OPEN):
            if self.holder(name) != self.setting.node:
                (self.root / OPEN / name).unlink()
                self.holder_file(name).unlink()


class NotingAsController(Held):
    """Writes notes where it is a controller."""

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if self.setting.controller:
            super().formatting(handle)


class OpeningAsController(Held):
    """Makes its directory in the process that is to be a controller, and looks for it in all."""

    def resume(self) -> None:
        super().resume()
        if self.setting.controller and self.setting.serves_node:
            (self.root / "ready").touch()

    def open_device(self, request: OpenRequest) -> Device:
        if not (self.root / "ready").exists():
            raise FailedPrecondition("the directory is not ready")
        return super().open_device(request)


class RefreshingAsController(Held):
    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        if not self.setting.controller:
            raise FailedPrecondition("the size is for controllers to know")
        super().refresh_device(handle)


class Buffering(Held):
    """Writes back when the device is closed, and, where it serves the node, before a copy."""

    def buffer(self, handle: str) -> Path:
        return self.root / OPEN / f"{handle}.buffer"

    def open_device(self, request: OpenRequest) -> Device:
        found = super().open_device(request)
        if not self.buffer(request.handle).exists():
            shutil.copyfile(found.path, self.buffer(request.handle))
            found.path.unlink()
            found.path.symlink_to(self.buffer(request.handle))
        return found

    def write_back(self, handle: str) -> None:
        if self.buffer(handle).exists():
            shutil.copyfile(self.buffer(handle), self._entry(VOLUMES, handle) / "data")

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.write_back(handle)
        self.buffer(handle).unlink(missing_ok=True)
        super().close_device(handle)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        if self.setting.serves_node:
            self.write_back(request.source)
        return super().create_snapshot(request)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        if self.buffer(request.source.handle).exists():
            raise InUse("the volume is open")
        return super().clone_volume(request)


BROKEN = [
    (
        roles.a_volume_that_a_node_uses_is_not_deleted_by_a_controller,
        over_files(Trusting),
        "a volume that is open: delete_volume by a controller on this node: succeeded",
    ),
    (
        roles.a_volume_that_a_node_uses_is_not_deleted_by_a_controller,
        over_files(TrustingOfItsNode),
        "a volume that is open: delete_volume by a controller on this node: succeeded",
    ),
    (
        roles.a_volume_that_a_node_uses_is_not_deleted_by_a_controller,
        Unattached,
        "a volume that is attached, then delete_volume by a controller on this node: succeeded",
    ),
    (
        roles.a_process_that_starts_elsewhere_leaves_what_is_open_on_a_node,
        over_files(Releasing),
        "resume and check of a process on this node, while a volume is open on this node, then open_device on node",
    ),
    (
        roles.a_process_that_starts_elsewhere_leaves_what_is_open_on_a_node,
        over_files(Sweeping),
        "resume and check of a process on another node, while a volume is open on this node, then delete_volume",
    ),
    (
        roles.a_volume_of_a_controller_is_formatted_and_used_by_a_node,
        over_files(NotingAsController),
        "formatting by a process of the node, then close_device and open_device: Device.blank",
    ),
    (
        roles.a_volume_of_a_controller_is_formatted_and_used_by_a_node,
        over_files(OpeningAsController),
        "open_device by a process of the node, of a volume that a controller created: raised FailedPrecondition",
    ),
    (
        roles.a_device_grows_that_a_node_has_open_while_a_controller_expands,
        over_files(RefreshingAsController),
        "refresh_device by a process of the node: raised FailedPrecondition",
    ),
    (
        roles.a_copy_by_a_controller_holds_what_a_node_has_synced_or_is_refused,
        over_files(Buffering),
        "create_snapshot by a controller, of a volume that a node has open: what was synced before is missing",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


CORRECT = [pytest.param(one.body, id=one.name) for one in CHECKS.values() if one.group == "roles"]


@pytest.mark.parametrize("subject", [over_files(Held), looped(Looped)], ids=["Held", "Looped"])
@pytest.mark.parametrize("check", CORRECT)
def test_a_backend_whose_processes_share_the_storage_only_passes(
    judged: Callable[..., Outcome], check: Any, subject: Any
) -> None:
    outcome = judged(check, subject)

    assert outcome.state is CheckState.PASSED, outcome.text


@pytest.mark.parametrize("check", CORRECT)
def test_a_backend_that_knows_no_holders_is_not_asked_for_them(judged: Callable[..., Outcome], check: Any) -> None:
    outcome = judged(check, over_files(FileBackend))

    assert outcome.state is not CheckState.FAILED, outcome.text
