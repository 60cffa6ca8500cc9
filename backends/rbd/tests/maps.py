"""A node whose driver maps images of a real cluster, and operations on its devices by hand."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from csi_multi_rbd import krbd, nbd, resources
from csi_multi_rbd.client import Client
from csi_multi_rbd.devices import DeviceManager, MapSettings
from csi_multi_rbd.resources import Image
from msgspec.structs import replace

from csi_multi.contract import Blank, Device, OpenRequest
from csi_multi.host.blockdev import BlockDevices

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

    from csi_multi.contract.backend import Setting

    from .ceph_commands import Commands

MIB = 2**20
SIZE = 64 * MIB
LIMIT = 120.0  # seconds for a command by hand
BOTH = ("rbd", "rbd-nbd")


def by(*mounters: str) -> pytest.MarkDecorator:
    """Run a test by these mounters; by both with MATRIX, since each takes a guest half a minute."""
    return pytest.mark.parametrize("mounter", BOTH if os.environ.get("MATRIX") else mounters)


class Node:
    """Each call is a driver's that has just been started."""

    def __init__(self, cluster: Commands, config: Config, setting: Setting) -> None:
        self.cluster = cluster
        self.config = config
        self.kernel = BlockDevices()
        self._setting = setting

    @property
    def rbd(self) -> Client:
        return Client(self.config)

    @property
    def devices(self) -> DeviceManager:
        return DeviceManager(self.config, self._setting, self.rbd)

    def image(self, name: str, *, size: int = SIZE, features: str = "") -> str:
        words = ["--image-feature", features] if features else []
        self.cluster.rbd("create", "--size", f"{size}B", *words, self.rbd.spec(name))
        return name

    def open(
        self,
        image: str,
        mounter: str = "rbd",
        *,
        read_only: bool = False,
        exclusive: bool = True,
        blank: Blank = Blank.ZEROED,
        options: str = "",
        rbd: Client | None = None,
    ) -> Device:
        use = MapSettings(mounter=mounter, map_options=options, exclusive=exclusive)
        request = OpenRequest(handle=image, read_only=read_only)
        return self.devices.open(rbd or self.rbd, self.info(image), use, request, blank)

    def info(self, image: str) -> Image:
        """What the cluster says of it, by a command outside of the guest: there it is quick. So are the next two."""
        return resources.image(json.loads(self.cluster.rbd("info", "--format", "json", self.rbd.spec(image))))

    def watchers(self, image: str) -> list[str]:
        told = json.loads(self.cluster.rbd("status", "--format", "json", self.rbd.spec(image)))
        return [one["address"] for one in told["watchers"]]

    def resize(self, image: str, size: int) -> None:
        self.cluster.rbd("resize", "--no-progress", "--size", f"{size}B", self.rbd.spec(image))

    def find(self, image: str) -> Device | None:
        return self.devices.find(image)

    def close(self, image: str) -> None:
        self.devices.close(image)

    def mappings(self, image: str) -> list[str]:
        """Return the disks that show an image."""
        by_process = [shown.disk for _, shown in nbd.find(self.kernel, self.config, image)]
        return [shown.disk for shown in krbd.find(self.kernel, self.config, image)] + by_process

    def by_hand(self, *words: str) -> str:
        """Run rbd as the driver's user."""
        return command(*self._as_user(*words))

    def _as_user(self, *words: str) -> tuple[str, ...]:
        config = self.config
        common = ("--conf", "/dev/null", "-m", ",".join(config.monitors), "--id", config.user)
        return ("rbd", *common, "--keyring", config.keyring, *words)

    @contextmanager
    def elsewhere(self, image: str) -> Iterator[str]:
        """Open an image as another node would, and yield that client's address."""
        before = set(self.watchers(image))
        process = subprocess.Popen(
            self._as_user("watch", self.rbd.spec(image)), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        try:
            wait(lambda: bool(set(self.watchers(image)) - before))
            (address,) = set(self.watchers(image)) - before
            yield address
        finally:
            process.communicate(b"\n")

    def there(self, cluster: Commands, namespace: str = "") -> Node:
        """The same node, as another instance has it."""
        config = replace(
            self.config,
            monitors=cluster.monitors,
            fsid=cluster.fsid,
            namespace=namespace,
            keyring=str(cluster.keyring),
        )
        return Node(cluster, config, self._setting)

    def at(self, location: str) -> Node:
        """The same node, at a CRUSH location."""
        return Node(self.cluster, replace(self.config, crush_locations={"*": location}), self._setting)

    def keyless(self) -> Node:
        """The same node, where keys come with the requests."""
        return Node(self.cluster, replace(self.config, keyring=""), self._setting)

    def clean(self) -> None:
        """End whatever is still mapped, and let the cluster forget who was killed."""
        for disk in self.kernel.disks():
            if krbd.DISK.fullmatch(disk):
                command("rbd", "unmap", "-o", "noudev,force", f"/dev/{disk}")
            elif nbd.DISK.fullmatch(disk) and self.kernel.text(disk, "pid"):
                command("rbd-nbd", "unmap", f"/dev/{disk}")
        for image in json.loads(self.cluster.rbd("ls", "--format", "json", self.rbd.spec("").rstrip("/"))):
            for address in self.watchers(image):
                self.cluster.ceph("osd", "blocklist", "add", address, "60")


def command(*words: str) -> str:
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(words, stdout=stdout, stderr=stderr)
        try:
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()  # and not waited for: the kernel may keep it for as long as a cluster does not answer
            raise
        stdout.seek(0)
        stderr.seek(0)
        assert status == 0, (words, stderr.read())
        return stdout.read().strip()


def rbd_nbd() -> dict[int, str]:
    """Return the processes that serve devices: number and command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if not entry.name.isdecimal() or (entry / "comm").read_text() != "rbd-nbd\n":
                continue
            if line := (entry / "cmdline").read_text():
                found[int(entry.name)] = line.replace("\0", " ")
    return found


@contextmanager
def held(path: Path, flags: int = os.O_RDONLY | os.O_EXCL) -> Iterator[None]:
    """Use a device as a mount does."""
    descriptor = os.open(path, flags)
    try:
        yield
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes, offset: int = 0) -> None:
    with path.open("r+b", buffering=0) as disk:
        disk.seek(offset)
        disk.write(data)
        os.fsync(disk.fileno())


def read(path: Path, length: int, offset: int = 0) -> bytes:
    """Read what the cluster has, not what the page cache has."""
    command("blockdev", "--flushbufs", str(path))
    with path.open("rb") as disk:
        disk.seek(offset)
        return disk.read(length)


def wait(reached: Callable[[], bool], seconds: float = 20.0) -> None:
    ends = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.05)
