"""Backends with devices that are not what they say, and the checks that see it. The devices are real."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import State
from csi_multi_testing.checks import CHECKS, blanks, devices, health
from csi_multi_testing.memory import MemoryBackend, MemoryStorage, _data_key
from csi_multi_testing.storage import MIB, NODE, Storage, setting

from csi_multi.contract import (
    Blank,
    Device,
    ExpandRequest,
    Expansion,
    Health,
    HealthEntry,
    InUse,
    Node,
    OpenRequest,
    Snapshot,
    SnapshotRequest,
    StorageHealthEntry,
    Strings,
    Volume,
    VolumeRequest,
    missing,
)
from csi_multi.contract import backend as b
from csi_multi.host import loopdev
from csi_multi.host.loopfile import LoopFiles, shown

pytestmark = pytest.mark.root


class Looped(MemoryBackend, b.NodeHealthReporter):
    """Volumes in memory, their bytes in files that loop devices show. Correct."""

    def __init__(self, config: Any, setting: b.Setting, storage: MemoryStorage, root: Path) -> None:
        super().__init__(config, setting, storage)
        self.root = root
        self.loops = LoopFiles(setting.host)
        self.notes: dict[str, Blank] = vars(storage).setdefault("notes", {})

    def file(self, handle: str) -> Path:
        return self.root / handle

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        if request.source:
            shutil.copyfile(self.file(_data_key(request.source)), self.file(made.handle))
            self.notes[made.handle] = Blank.NEVER
        self.file(made.handle).touch()
        os.truncate(self.file(made.handle), made.size)
        return made

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        if self.loops.find(self.file(handle)):
            raise InUse(f"volume {handle!r} is open")
        super().delete_volume(handle, secrets)
        self.file(handle).unlink()
        self.notes.pop(handle, None)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        done = super().expand_volume(request)
        os.truncate(self.file(request.handle), done.size)
        return done

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        shutil.copyfile(self.file(made.source), self.file(f"@{made.handle}"))
        return made

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_snapshot(handle, secrets)
        self.file(f"@{handle}").unlink()

    def open_device(self, request: OpenRequest) -> Device:
        self.get_volume(request.handle)
        path = self.loops.open(self.file(request.handle), read_only=request.read_only)
        return shown(path, self.blank(request.handle))

    def find_device(self, handle: str) -> Device | None:
        self.get_volume(handle)
        path = self.loops.find(self.file(handle))
        return shown(path, self.blank(handle)) if path else None

    def blank(self, handle: str) -> Blank:
        return self.notes.get(handle, Blank.ZEROED)

    def close_device(self, handle: str) -> None:
        self.loops.close(self.file(handle))

    def refresh_device(self, handle: str) -> None:
        self.loops.refresh(self.file(handle))

    def formatting(self, handle: str) -> None:
        if self.blank(handle) is not Blank.NEVER:
            self.notes[handle] = Blank.INTERRUPTED

    def formatted(self, handle: str) -> None:
        self.notes[handle] = Blank.NEVER

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        return self.volume_health(handle, {})

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return ()


ROOTS: list[Path] = []


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    while ROOTS:
        root = ROOTS.pop()
        for device, file in loopdev.bound().items():
            if file.startswith(f"{root}/"):
                os.system(f"losetup --detach {device}")
        shutil.rmtree(root)


def looped(kind: type[Looped]) -> Callable[[], Storage]:
    """Return a storage over a new directory."""

    def storage() -> Storage:
        root, storage = Path(tempfile.mkdtemp(prefix="kit-devices-")), MemoryStorage()
        ROOTS.append(root)
        return Storage(
            connect=lambda host: kind(memory.Config(), setting(host), storage, root),
            size=MIB,
            resources=lambda: [*storage.names(), *os.listdir(root)],
            nodes=(Node(name=NODE, id=NODE),),
            devices=True,
        )

    return storage


class Telling(Looped):
    """What it says about devices: the defects below are there."""

    def told(self, device: Device) -> Device:
        return device

    def open_device(self, request: OpenRequest) -> Device:
        return self.told(super().open_device(request))

    def find_device(self, handle: str) -> Device | None:
        found = super().find_device(handle)
        return found and self.told(found)


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
        return shown(path, self.blank(request.handle))


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
    def told(self, device: Device) -> Device:
        return replace(device, number="7:4095")


class Unproven(Telling):
    def told(self, device: Device) -> Device:
        return replace(device, proof={})


class Misproven(Telling):
    """Expects what it asked for, which the kernel spells otherwise."""

    def told(self, device: Device) -> Device:
        return replace(device, proof={"loop/backing_file": Path(device.proof["loop/backing_file"]).name})


class Plain(Telling):
    """Hands out the file, and not a device."""

    def told(self, device: Device) -> Device:
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
        return shown(self.loops.open(self.file(request.handle)), Blank.NEVER)


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


class Reusing(Looped):
    """Gives the bytes of a volume that was deleted to the next one."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        vars(self.storage)["bytes"] = self.file(handle).read_bytes()
        super().delete_volume(handle, secrets)

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        with self.file(made.handle).open("r+b") as file:
            file.write(vars(self.storage).get("bytes", b""))
        return made


class Cautious(Telling):
    """Takes nothing for blank."""

    def told(self, device: Device) -> Device:
        return replace(device, blank=Blank.NEVER)


class Forgetful(Looped):
    """Keeps its notes in the process."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.notes = {}


class Deaf(Looped):
    """Takes no notes about what is in use."""

    def formatting(self, handle: str) -> None:
        if not self.find_device(handle):
            super().formatting(handle)


class Backwards(Looped):
    """Takes what it hears last for true."""

    def formatting(self, handle: str) -> None:
        self.notes[handle] = Blank.INTERRUPTED


class Renewing(Looped):
    """Writes the record anew when it grows."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self.notes.pop(request.handle, None)
        return super().expand_volume(request)


class Hopeful(Looped):
    """Takes copies for as blank as anything new."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        self.notes.pop(made.handle, None)
        return made


class Noteless(Looped):
    """Takes no notes, and needs none: what it makes reads as zeros. Correct."""

    formatting = b.Backend.formatting
    formatted = b.Backend.formatted


class Stamped(Noteless):
    """Does not zero, and takes no notes."""

    def blank(self, handle: str) -> Blank:
        return self.notes.get(handle, Blank.STAMPED)


class Occupied(Looped):
    """Finds that a volume in use is in use."""

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        if not self.find_device(handle):
            return super().node_volume_health(handle)
        return (HealthEntry(status=Health.INACCESSIBLE, reason="InUse", message="it is open"),)


BROKEN = [
    (devices.a_device_is_found_while_it_is_open, looped(Eager), "find_device before open_device: found Device"),
    (devices.a_device_is_found_while_it_is_open, looped(Clinging), "close_device, then find_device: found Device"),
    (devices.opening_twice_gives_the_same_device, looped(Multiplying), "open_device, a second time: found"),
    (devices.written_data_survives_closing_the_device, looped(Discarding), "shows other bytes than were"),
    (devices.two_volumes_have_different_devices, looped(OneForAll), "Device.path of both is"),
    (devices.the_proof_of_a_device_matches_the_kernel, looped(Plain), "is not a block device"),
    (devices.the_proof_of_a_device_matches_the_kernel, looped(Miscounting), "Device.number, against what"),
    (devices.the_proof_of_a_device_matches_the_kernel, looped(Unproven), "Device.proof is empty"),
    (devices.the_proof_of_a_device_matches_the_kernel, looped(Misproven), "loop/backing_file holds: found '/"),
    (devices.a_device_opened_read_only_refuses_writes, looped(Writable), "Device.read_only: found False"),
    (devices.a_device_opened_read_only_refuses_writes, looped(Pretending), "takes writes"),
    (devices.an_open_device_is_found_after_a_restart, looped(Remembering), "find_device after a restart: found"),
    (devices.a_deleted_volume_has_no_device, looped(Making), "succeeded, the contract requires NotFound"),
    (devices.a_deleted_volume_has_no_device, looped(Insisting), "close_device of a volume that was deleted"),
    (devices.a_volume_whose_device_is_open_is_not_deleted, looped(Ruthless), "the contract requires InUse"),
    (devices.an_open_device_grows_with_its_volume, looped(Unrefreshed), "shows: found 1048576"),
    (
        blanks.a_new_volume_is_as_blank_as_its_device_reports,
        looped(Reusing),
        "other bytes than zeros in the block at 0",
    ),
    (blanks.a_new_volume_is_as_blank_as_its_device_reports, looped(Cautious), "otherwise nobody can ever use it"),
    (blanks.formatting_notes_survive_a_restart, looped(Forgetful), "formatting and a restart, then Device.blank"),
    (blanks.formatting_notes_survive_a_restart, looped(Stamped), "data would be formatted"),
    (blanks.formatting_notes_can_be_written_while_the_device_is_open, looped(Deaf), "formatting of an open device"),
    (blanks.a_formatted_volume_is_never_blank_again, looped(Backwards), "formatted, then formatting: Device"),
    (blanks.an_expanded_volume_is_as_blank_as_before, looped(Renewing), "expand_volume: Device.blank: found"),
    (blanks.a_restored_volume_is_never_blank, looped(Hopeful), "restore_volume, then Device.blank: found"),
    (blanks.a_cloned_volume_is_never_blank, looped(Hopeful), "clone_volume, then Device.blank: found"),
    (health.an_open_volume_is_healthy_on_its_node, looped(Occupied), "a new volume that is open: found"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


GROUPS = ("devices", "blanks", "health")


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group in GROUPS])
def test_loop_devices_pass(judged: Any, name: str) -> None:
    outcome = judged(CHECKS[name].body, looped(Looped))

    assert outcome.state is State.PASSED, outcome.text


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "blanks"])
def test_loop_devices_without_notes_pass(judged: Any, name: str) -> None:
    outcome = judged(CHECKS[name].body, looped(Noteless))

    assert outcome.state is State.PASSED or "keeps no notes" in outcome.text
