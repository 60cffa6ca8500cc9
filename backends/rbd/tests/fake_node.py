"""A node without a kernel: a tree like /sys, /dev and /proc, and an rbd whose mappings show there."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from csi_multi_rbd.client import Client
from csi_multi_rbd.config import Config
from csi_multi_rbd.devices import DeviceManager, MapSettings
from csi_multi_rbd.errors import ImageNotFound
from csi_multi_rbd.resources import Image, MapKind

from csi_multi.contract import Blank, Device, InUse, OpenRequest, Setting
from csi_multi.host.blockdev import BlockDevices

MIB = 1 << 20
FSID = "11111111-2222-3333-4444-555555555555"
OURS = "192.0.2.1:0/1"


def config(**values: object) -> Config:
    facts = {"monitors": ("192.0.2.9",), "fsid": FSID, "pool": "k8s", "user": "csi", "keyring": "/keyring", **values}
    return Config(**facts)  # type: ignore[arg-type]


class FakeKernel(BlockDevices):
    """Disks come and go as a test or a FakeRbd says."""

    def __init__(self, root: Path) -> None:
        super().__init__(sys=root / "sys", dev=root / "dev", proc=root / "proc")
        for place in (self.sys / "block", self.dev, self.proc):
            place.mkdir(parents=True)
        self.users: set[Path] = set()
        self.raw: set[Path] = set()
        self.whole = True
        self._numbers = itertools.count()

    def krbd(self, image: str, image_id: str, *, place: str = "k8s/", fsid: str = FSID, **facts: str) -> str:
        """Map an image; return the disk. `place` is pool/namespace."""
        number = next(self._numbers)
        pool, _, namespace = place.partition("/")
        device = {
            "pool": pool,
            "pool_ns": namespace,
            "name": image,
            "image_id": image_id,
            "cluster_fsid": fsid,
            "current_snap": "-",
            "client_addr": OURS,
            "refresh": "",
            **facts,
        }
        return self._plug(f"rbd{number}", 253, number, {f"device/{name}": text for name, text in device.items()})

    def nbd(self, cookie: str, pid: int = 0) -> str:
        """Map by a process; return the disk."""
        number = next(self._numbers)
        disk = self._plug(f"nbd{number}", 43, number, {"backend": cookie, "pid": str(pid or 1000 + number)})
        self.process(pid or 1000 + number, "rbd-nbd", "map")
        return disk

    def process(self, pid: int, *words: str) -> None:
        entry = self.proc / str(pid)
        entry.mkdir()
        (entry / "comm").write_text(f"{words[0]}\n")
        (entry / "cmdline").write_text("".join(f"{word}\0" for word in words))

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    def unplug(self, disk: str) -> None:
        shutil.rmtree(self.sys / "block" / disk)
        (self.dev / disk).unlink(missing_ok=True)

    def resize(self, disk: str, size: int) -> None:
        (self.sys / "block" / disk / "size").write_text(f"{size // 512}\n")

    def number(self, path: Path) -> str:
        return path.read_text() if path.is_file() else ""

    def in_use(self, path: Path) -> bool:
        return path in self.users | self.raw

    def is_node_bound(self, path: Path) -> bool:
        return path in self.raw

    def set_read_only(self, path: Path, wanted: bool) -> None:
        self.write_attribute(path.name, "ro", f"{int(wanted)}\n")

    def _plug(self, disk: str, major: int, number: int, attributes: dict[str, str]) -> str:
        facts = {**attributes, "dev": f"{major}:{number}", "ro": "0", "size": str(64 * MIB // 512)}
        for name, text in facts.items():
            file = self.sys / "block" / disk / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        (self.dev / disk).write_text(f"{major}:{number}")
        return disk


class FakeRbd:
    """The part of Client that devices.py uses; a mapping is a watcher, and those of strangers are in `strangers`."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.images: dict[str, Image] = {}
        self.strangers: list[str] = []
        self.forgotten = False  # the cluster has shut this node out
        self.asked: list[str] = []  # verbs, in order
        self.before: dict[str, Callable[[], None]] = {}  # what happens at a verb, or fails it
        self.options: tuple[str, ...] = ()

    def image(self, name: str, image_id: str = "id1", *features: str, size: int = 64 * MIB) -> Image:
        self.images[name] = Image(
            name=name, id=image_id, size=size, features=frozenset(features or ("layering", "exclusive-lock"))
        )
        return self.images[name]

    def spec(self, image: str, snapshot: str = "") -> str:
        return f"k8s/{image}"

    def info(self, image: str) -> Image:
        self._at("info")
        if image not in self.images:
            raise ImageNotFound(f"image {image} does not exist")
        return self.images[image]

    def watchers(self, image: str) -> tuple[str, ...]:
        self._at("watchers")
        ours = [] if self.forgotten else [disk for disk in self.kernel.disks() if self._shows(disk, image)]
        return (*([OURS] if ours else []), *self.strangers)

    def map(
        self, image: str, *, kind: MapKind, read_only: bool, exclusive: bool, options: tuple[str, ...], cookie: str = ""
    ) -> str:
        self.options = options
        self._at(f"map {kind}{' exclusive' * exclusive}")
        self.forgotten = False
        disk = self.kernel.krbd(image, self.images[image].id) if kind == "krbd" else self.kernel.nbd(cookie)
        return f"/dev/{disk}"

    def attach(self, image: str, *, device: str, exclusive: bool, options: tuple[str, ...], cookie: str = "") -> None:
        self._at("attach")
        self.kernel.process(7000, "rbd-nbd", "attach", image, "--device", device, "--cookie", cookie)

    def unmap(self, device: str, *, kind: MapKind, options: tuple[str, ...] = ()) -> None:
        self.options = options
        self._at(f"unmap {kind}")
        if Path(device) in self.kernel.users:
            raise InUse(f"{device} is in use")
        self.kernel.unplug(Path(device).name)

    def _at(self, verb: str) -> None:
        self.asked.append(verb)
        if verb in self.before:
            self.before[verb]()

    def _shows(self, disk: str, image: str) -> bool:
        cookie = self.kernel.text(disk, "backend") or ""
        return image in (self.kernel.text(disk, "device/name"), *cookie.split("/"))


class Node:
    """A driver that is started anew for each call."""

    def __init__(self, rbd: FakeRbd, setting: Setting, **values: object) -> None:
        self.rbd = rbd
        self._config = config(**values)
        self._setting = setting

    @property
    def devices(self) -> DeviceManager:
        return DeviceManager(self._config, self._setting, self._as_rbd, self.rbd.kernel)

    def open(
        self,
        image: str = "v",
        *,
        read_only: bool = False,
        blank: Blank = Blank.ZEROED,
        holder: str = "",
        **use: Any,
    ) -> Device:
        request = OpenRequest(handle=image, read_only=read_only)
        wanted = MapSettings(**{"mounter": "rbd", **use})
        return self.devices.open(self._as_rbd, self.rbd.images[image], wanted, request, blank, holder=holder)

    def open_known(self, image: Image, mounter: str) -> Device:
        """Open an image that was looked up a while ago."""
        request = OpenRequest(handle=image.name)
        return self.devices.open(self._as_rbd, image, MapSettings(mounter=mounter), request, Blank.ZEROED)

    @property
    def _as_rbd(self) -> Client:
        return self.rbd  # type: ignore[return-value]


def found(node: Node) -> Device:
    device = node.devices.find("v")
    assert device is not None
    return device


def failing(error: Exception) -> Any:
    def fail() -> None:
        raise error

    return fail


def once(error: Exception) -> Any:
    errors = [error]

    def fail() -> None:
        if errors:
            raise errors.pop()

    return fail
