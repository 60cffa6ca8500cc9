"""A backend over files and real loop devices, a host on which the driver can be killed, and a check for leaks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from csi_multi.contract import (
    NO_SECRETS,
    AccessMode,
    AlreadyExists,
    Blank,
    Capability,
    Device,
    Expand,
    ExpandRequest,
    Expansion,
    HealthEntry,
    InUse,
    Mount,
    OpenRequest,
    Result,
    Setting,
    SizeRange,
    Stamp,
    Strings,
    Volume,
    VolumeRequest,
    missing,
)
from csi_multi.host import loopdev, mount_calls, mounts, sysfs
from csi_multi.host.command import LocalHost
from csi_multi.node import grow, publish, stage, unstage, volume_status
from csi_multi.node.encryption import EncryptionLayer
from csi_multi.node.requests import PublishRequest, StageRequest, Usage

MiB = 1024 * 1024
T = TypeVar("T")


class Killed(BaseException):
    """The driver dies here: nothing that handles errors runs any more."""


class KillableHost:
    """The real host, with points at which the driver can be killed, and a record of what was run."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []  # commands, and calls of the kernel
        self.commands: list[str] = []  # the programs
        self.loops: set[tuple[str, str | None]] = set()  # each as `attachment` describes it
        self.left: int | None = None  # steps to live
        self.replaced: dict[str, Any] = {}  # program -> callable to run instead
        self._real = LocalHost()

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def run(self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = 60) -> Result:
        self.step()
        self.calls.append(argv)
        self.commands.append(argv[0])
        if argv[0] in self.replaced:
            return self.replaced[argv[0]](*argv, stdin=stdin, ok=ok, timeout=timeout)
        result = self._real.run(*argv, stdin=stdin, ok=ok, timeout=timeout)
        self.step()
        return result

    def call(self, function: Callable[[], T], *words: str, **options: Any) -> T:
        self.step()
        self.calls.append(words)
        if words[0] == "mount" and "mount" in self.replaced:
            raise OSError(errno.ENOSYS, "not on this kernel, so that the command is run")
        if words[0] in self.replaced:
            return self.replaced[words[0]](function, *words, **options)
        result = self._real.call(function, *words, **options)
        if words[:2] == ("losetup", "--find"):
            self.loops.add(attachment(str(result)))
        try:
            self.step()
        except Killed:
            if discard := options.get("discard"):  # the kernel closes what the process had open
                discard(result)
            raise
        return result


def attachment(loop: str) -> tuple[str, str | None]:
    """A loop device, and the number that it gets with each file: the next file may be another program's."""
    return loop, sysfs.attribute(sysfs.number_of(Path(loop)), "diskseq")


class FileBackend(Expand):
    """One sparse file per volume, and a small file beside it that says how blank it is."""

    contract = (1, 1)
    access_modes = frozenset(AccessMode)
    knows_data = False  # whether has_data answers, as storage does that records what was written
    asked_for_data = False

    def image(self, handle: str) -> Path:
        return self.config / f"{handle}.img"

    def blank(self, handle: str) -> Blank:
        return Blank(json.loads(self.image(handle).with_suffix(".json").read_text()))

    def note(self, handle: str, blank: Blank) -> None:
        self.image(handle).with_suffix(".json").write_text(json.dumps(blank.value))

    def create_volume(self, request: VolumeRequest) -> Volume:
        if self.image(request.name).exists():
            raise AlreadyExists(request.name)
        with self.image(request.name).open("wb") as file:
            file.truncate(request.size.required)
        self.note(request.name, Blank.ZEROED)
        return self.get_volume(request.name)

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(name)

    def get_volume(self, handle: str) -> Volume:
        if not self.image(handle).exists():
            raise missing("volume", handle)
        return Volume(handle=handle, size=self.image(handle).stat().st_size, stamp=_stamp(handle))

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        self.image(handle).unlink()

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        os.truncate(self.image(request.handle), request.size.required)
        return Expansion(size=request.size.required)

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        for loop in loopdev.find(self.image(handle)):
            loopdev.refresh(self.setting.host, loop)

    def open_device(self, request: OpenRequest) -> Device:
        self.get_volume(request.handle)
        self.opening = request
        if device := self.find_device(request.handle):
            return device
        image = self.image(request.handle)
        return self.device(request.handle, loopdev.attach(self.setting.host, image, read_only=request.read_only))

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        self.get_volume(handle)
        found = loopdev.find(self.image(handle))
        return self.device(handle, found[0]) if found else None

    def device(self, handle: str, loop: Path) -> Device:
        number = sysfs.number_of(loop)
        return Device(
            path=loop,
            number=number,
            proof={"loop/backing_file": str(self.image(handle))},
            blank=self.blank(handle),
            read_only=sysfs.read_only(number),
        )

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        for loop in loopdev.find(self.image(handle)):
            try:
                os.close(os.open(loop, os.O_RDONLY | os.O_EXCL))
            except OSError:
                raise InUse(f"{loop} is in use") from None
            loopdev.detach(self.setting.host, loop)

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.setting.host.step()
        self.note(handle, Blank.INTERRUPTED)
        self.setting.host.step()

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.setting.host.step()
        self.note(handle, Blank.NEVER)
        self.setting.host.step()

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        self.asked_for_data = True
        with self.image(handle).open("rb") as file:
            try:
                file.seek(0, os.SEEK_DATA)
            except OSError:  # ENXIO: there is none
                return False if self.knows_data else None
        return True if self.knows_data else None


def _stamp(handle: str) -> Stamp:
    return Stamp(driver="test", cluster="test", name=handle, digest="")


class World:
    """An engine, a backend and a place for paths, with the words the tests use."""

    Killed = Killed

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = KillableHost()
        (directory / "images").mkdir()
        setting = Setting(instance="test", driver="test", cluster="test", node="node", host=self.host)
        self.backend = FileBackend(directory / "images", setting)
        self.encrypted = False
        self.context: Strings = {}
        self.secrets: Strings = {}

    @property
    def devices(self) -> Any:
        """The backend, or the layer that encrypts over it."""
        return EncryptionLayer(self.host, self.backend) if self.encrypted else self.backend

    def encrypt(self) -> None:
        """Let the volumes be encrypted from now on."""
        self.encrypted = True
        self.context = {"encryption": "luks2", "encryptionPbkdf": "pbkdf2", "encryptionPbkdfTime": "100"}
        self.secrets = {"passphrase": "correct horse battery staple"}

    def volume(self, handle: str = "v1", size: int = 32 * MiB, blank: Blank = Blank.ZEROED) -> str:
        with self.backend.image(handle).open("wb") as file:
            file.truncate(size)
        self.backend.note(handle, blank)
        return handle

    def capability(
        self, fs: str | None = "ext4", mode: str = "SINGLE_NODE_WRITER", flags: tuple[str, ...] = (), group: str = ""
    ) -> Capability:
        """`fs` None: raw block."""
        mount = None if fs is None else Mount(fs_type=fs, flags=flags, group=group)
        return Capability(mode=AccessMode[mode], mount=mount)

    def staging(self, handle: str = "v1") -> Path:
        path = self.directory / f"staging-{handle}"
        path.mkdir(exist_ok=True)
        return path

    def target(self, name: str = "target") -> Path:
        return self.directory / name

    def device(self, handle: str = "v1") -> Device:
        device = self.backend.find_device(handle)
        assert device
        return device

    def stage(self, handle: str = "v1", staging: Path | None = None, context: Strings = {}, **capability: Any) -> Path:  # noqa: B006
        staging = staging or self.staging(handle)
        wanted = self.capability(**capability)
        stage.stage(
            self.host,
            self.devices,
            StageRequest(
                handle=handle,
                staging=staging,
                capability=wanted,
                volume_context={**self.context, **context},
                secrets=self.secrets,
            ),
        )
        return staging

    def publish(
        self,
        handle: str = "v1",
        target: Path | None = None,
        staging: Path | None = None,
        read_only: bool = False,
        **capability: Any,
    ) -> Path:
        target = target or self.target()
        publish.publish(
            self.host,
            self.devices,
            PublishRequest(
                handle=handle,
                staging=staging or self.staging(handle),
                target=target,
                capability=self.capability(**capability),
                read_only=read_only,
            ),
        )
        return target

    def unpublish(self, handle: str = "v1", target: Path | None = None) -> None:
        publish.unpublish(self.host, self.devices, handle, target or self.target())

    def unstage(self, handle: str = "v1", staging: Path | None = None) -> None:
        unstage.unstage(self.host, self.devices, handle, staging or self.staging(handle))

    def expand(self, handle: str, path: Path, size: SizeRange) -> int:
        return grow.expand(self.host, self.devices, handle, path, size)

    def usage(self, handle: str, path: Path) -> tuple[Usage, ...]:
        return volume_status.usage(self.devices, handle, path)

    def health(self, handle: str) -> tuple[HealthEntry, ...]:
        return volume_status.health(self.devices, self.backend, handle)

    def digest(self, handle: str = "v1") -> str:
        """Hash all that is not zero, with its place; fast for sparse files."""
        found = hashlib.sha256()
        with self.backend.image(handle).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            found.update(str(size).encode())
            position = 0
            while position < size:
                try:
                    position = file.seek(position, os.SEEK_DATA)
                except OSError:
                    break  # only a hole is left
                data = file.read(MiB)
                if data.count(0) != len(data):
                    found.update(f"{position}:".encode() + data)
                position += len(data)
        return found.hexdigest()

    def sh(self, *argv: str, input: str | None = None) -> str:
        return subprocess.run(argv, check=True, capture_output=True, text=True, input=input).stdout

    def attach(self, file: Path) -> str:
        """Bind a loop device, past the backend."""
        return self.sh("losetup", "--find", "--show", str(file)).strip()

    def detach(self, loop: str) -> None:
        loopdev.detach(LocalHost(), Path(loop))

    def mounted(self) -> list[str]:
        return [mount.target for mount in mounts.table() if mount.target.startswith(str(self.directory))]

    def loops(self) -> list[str]:
        """Return the loop devices bound to our files, and those that were attached for us, whatever is below."""
        return sorted(
            str(loop)
            for loop, backing in loopdev.bound_devices().items()
            if backing.startswith(str(self.directory)) or attachment(str(loop)) in self.host.loops
        )

    def sweep(self) -> None:
        """Clean up after a failed test."""
        for target in reversed(self.mounted()):
            subprocess.run(["umount", "-l", "-c", "--", target], check=False)
        for loop in reversed(self.loops()):
            subprocess.run(["losetup", "--detach", loop], check=False)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world in which nothing may be left: neither mounts nor loop devices."""
    made = World(tmp_path)

    def killable(call: Callable[..., None]) -> Callable[..., None]:
        def step_by_step(*arguments: Any) -> None:
            made.host.step()
            call(*arguments)
            made.host.step()

        return step_by_step

    for name in ("bind", "attach"):
        monkeypatch.setattr(mount_calls, name, killable(getattr(mount_calls, name)))
    yield made
    made.host.left = None
    mounted, loops = made.mounted(), made.loops()
    made.sweep()

    assert (mounted, loops) == ([], [])
