"""The verbs of rbd: answers come as rows, failures as the classes of statuses.py.

Where something does not exist, rbd does not say what. So every verb that may raise Missing looks once more
before it does: a pool, a namespace or a parent that is gone is never taken for an image that is gone.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

from csi_multi.contract import InUse, Strings

from . import export, rows
from .client import Client, in_memory, read
from .config import Config
from .gate import Gate
from .rows import Cut, Image, Layout, Listed, Trashed
from .shell import Shell
from .statuses import Absent, Missing, Refused, Torn, Watched

__all__ = ["Kind", "Layout", "Rbd"]

Kind = Literal["krbd", "nbd"]
T = TypeVar("T")

JSON = ("--format", "json")
QUIET = "--no-progress"
LOUD = "--err-to-stderr=true"  # whatever ceph.conf says
LIBRARY = "librbd::"  # what an image lacks is told by the library; that there is none, by the command
CLONE = ("--rbd-default-clone-format", "2")  # snapshots need no protection, and may go before their clones


class Rbd:
    """Images of one pool and namespace, as one user. Thread-safe."""

    def __init__(
        self, config: Config, shell: Shell | None = None, gate: Gate | None = None, *, client: Client | None = None
    ) -> None:
        self.client = client or Client(config, shell, gate)
        self._place = "/".join(filter(None, (config.pool, config.namespace)))

    @contextlib.contextmanager
    def using(self, secrets: Strings) -> Iterator[Rbd]:
        """Act as the user of a request's secrets; without such secrets as the instance's. Raises InvalidArgument."""
        with self.client.using(secrets) as client:
            yield self if client is self.client else Rbd(client.config, client=client)

    def spec(self, image: str, snapshot: str = "") -> str:
        return f"{self._place}/{image}" + (f"@{snapshot}" if snapshot else "")

    def info(self, image: str) -> Image:
        """Raises Missing, Torn."""
        with self._sure(image):
            try:
                return self._told(rows.image, "info", self.spec(image), LOUD)
            except Absent as error:
                if LIBRARY in str(error):
                    raise  # there is an image, and something else is missing, its parent for example
                raise Torn(f"{error}; nothing has that name but the list of names") from None

    def metadata(self, image: str) -> dict[str, str]:
        """Raises Missing."""
        with self._sure(image):
            return self._told(_texts, "image-meta", "list", self.spec(image), empty="{}")

    def watchers(self, image: str) -> tuple[str, ...]:
        """Return the addresses of the clients that have it open. Raises Missing."""
        with self._sure(image):
            told = self._told(lambda told: [one["address"] for one in told["watchers"]], "status", self.spec(image))
        return tuple(dict.fromkeys(told))

    def names(self) -> list[str]:
        return self._told(_names, "ls", self._place)

    def images(self) -> list[Listed]:
        """Return all images: rbd opens each of them, and leaves out what it cannot open."""
        return self._told(rows.listed, "ls", self._place, "--long", partly=True)

    def cuts(self) -> list[tuple[str, str]]:
        """Return (image, snapshot) of all snapshots in sight, of all images that can be opened."""
        return self._told(rows.listed_cuts, "ls", self._place, "--long", partly=True)

    def snapshots(self, image: str) -> list[Cut]:
        """Return all snapshots, those out of sight included. Raises Missing."""
        with self._sure(image):
            return self._told(lambda told: [rows.cut(one) for one in told], "snap", "ls", self.spec(image), "--all")

    def children(self, image: str) -> list[str]:
        """Return the names of its clones in this pool and namespace. Raises Missing."""
        with self._sure(image):
            return self._told(self._near, "children", self.spec(image))

    def used(self, image: str) -> int:
        """Return the bytes of the image's own objects. Raises Missing."""
        with self._sure(image):
            return self._told(_used, "du", self.spec(image), "--exact")

    def trash(self) -> list[Trashed]:
        return self._told(lambda told: [rows.trashed(one) for one in told], "trash", "ls", self._place, "--all")

    def create(self, image: str, size: int, layout: Layout, metadata: Strings) -> None:
        """Make an empty image with its image-meta: one command, half the time of two. Raises Exists."""
        with in_memory(export.empty(size, metadata)) as file:
            self.client.rbd("import", file, self.spec(image), "--export-format", "2", QUIET, *_laid_out(layout))

    def clone(self, source: str, snapshot: str, image: str, layout: Layout) -> None:
        """Make an image of a snapshot's data. Raises Exists, Missing for the source or its snapshot."""
        with self._sure(source, snapshot):
            self.client.rbd("clone", self.spec(source, snapshot), self.spec(image), *CLONE, *_laid_out(layout))

    def note(self, image: str, key: str, value: str) -> None:
        """Write one image-meta key. Raises Missing."""
        with self._sure(image):
            self.client.rbd("image-meta", "set", self.spec(image), key, value)

    def unnote(self, image: str, key: str) -> None:
        """Remove one image-meta key. One that is not there is fine. Raises Missing."""
        with contextlib.suppress(Absent), self._sure(image):
            self.client.rbd("image-meta", "remove", self.spec(image), key)

    def rename(self, image: str, name: str) -> None:
        """Give an image another name, open or not. Raises Exists, Missing."""
        with self._sure(image):
            self.client.rbd("mv", self.spec(image), self.spec(name))

    def resize(self, image: str, size: int) -> None:
        """Enlarge. Raises Missing, Refused when it is larger already, Locked."""
        try:
            with self._sure(image):
                self.client.rbd("resize", self.spec(image), QUIET, "--size", f"{size}B")
        except Refused as error:
            if error.status != errno.EINVAL or self.info(image).size != size:
                raise

    def cut(self, image: str, snapshot: str) -> None:
        """Make a snapshot. Raises Exists, Missing, Locked."""
        with self._sure(image):
            self.client.rbd("snap", "create", self.spec(image, snapshot), QUIET)

    def uncut(self, image: str, snapshot: str) -> None:
        """Remove a snapshot; clones that need it keep it, out of sight. One that is gone is fine."""
        with contextlib.suppress(Missing), self._sure(image, snapshot):
            self.client.rbd("snap", "rm", self.spec(image, snapshot), QUIET)

    def discard(self, image: str) -> None:
        """Move into the trash. Raises Missing, Watched."""
        with self._sure(image):
            self.client.rbd("trash", "mv", self.spec(image))

    def purge(self, id: str) -> None:
        """Remove from the trash. Raises Linked while clones or snapshots need it, Missing, Watched."""
        try:
            self.client.rbd("trash", "rm", f"{self._place}/{id}", QUIET, patient=True)
        except Absent as error:
            if all(one.id != id for one in self.trash()):
                raise Missing(f"there is no image with id {id} in the trash of {self._place}") from None
            raise error

    def remove(self, image: str) -> None:
        """Remove an image that is empty. Raises Missing, Linked, Watched."""
        with self._sure(image):
            self.client.rbd("rm", self.spec(image), QUIET)

    def flatten(self, image: str) -> None:
        """Copy all that an image shares with its parent. Raises Missing."""
        try:
            with self._sure(image):
                self.client.rbd("flatten", self.spec(image), QUIET, patient=True)
        except Refused as error:
            if error.status != errno.EINVAL or self.info(image).parent:
                raise

    def map(
        self,
        image: str,
        *,
        kind: Kind,
        read_only: bool,
        exclusive: bool,
        options: tuple[str, ...],
        cookie: str = "",
    ) -> str:
        """Return the device. Raises Missing, Locked, Blocked, Refused with the status of the kernel or of rbd-nbd."""
        words = ["--read-only"] * read_only + _mapping(exclusive, options, cookie)
        with self._sure(image):
            return self.client.device(kind, "map", self.spec(image), *words).strip()

    def attach(self, image: str, *, device: str, exclusive: bool, options: tuple[str, ...], cookie: str = "") -> None:
        """Serve a device of rbd-nbd again whose process has died. Raises as map does."""
        with self._sure(image):
            words = ("--device", device, *_mapping(exclusive, options, cookie))
            self.client.device("nbd", "attach", self.spec(image), *words)

    def unmap(self, device: str, *, kind: Kind, options: tuple[str, ...] = ()) -> None:
        """Needs no cluster and no user. Raises InUse."""
        try:
            self.client.local("device", "unmap", device, "--device-type", kind, *_mapping(False, options, ""))
        except Watched as error:
            raise InUse(f"{device} is in use: {error}") from None

    def _told(self, reader: Callable[[Any], T], *words: str, empty: str = "", partly: bool = False) -> T:
        """Ask for JSON. `empty` is what silence stands for."""
        return read(f"rbd {words[0]}", self.client.rbd(*words, *JSON, partly=partly).strip() or empty, reader)

    @contextlib.contextmanager
    def _sure(self, image: str, snapshot: str = "") -> Iterator[None]:
        """Say Missing only for what a listing does not have. It fails if the pool or the namespace is gone."""
        try:
            yield
        except Absent as error:
            if image not in self._names_surely():
                raise Missing(f"image {self.spec(image)} does not exist") from None
            if snapshot and all(one.name != snapshot for one in self.snapshots(image)):
                raise Missing(f"snapshot {self.spec(image, snapshot)} does not exist") from None
            raise error

    def _names_surely(self) -> list[str]:
        try:
            return self.names()
        except Absent as error:
            raise Absent(
                f"{error}; the pool, or the namespace in it, does not exist: create it ('rbd pool init', "
                "'rbd namespace create'), or name another one in the driver's configuration"
            ) from None

    def _near(self, told: list[rows.Told]) -> list[str]:
        places = ((one["pool"], one.get("pool_namespace", ""), one["image"]) for one in told)
        return [image for pool, namespace, image in places if "/".join(filter(None, (pool, namespace))) == self._place]


def _laid_out(layout: Layout) -> list[str]:
    words = [f"--image-feature={feature}" for feature in layout.features]
    words += ["--data-pool", layout.data_pool] if layout.data_pool else []
    words += ["--object-size", f"{layout.object_size}B"] if layout.object_size else []
    if layout.stripe_unit:
        words += ["--stripe-unit", f"{layout.stripe_unit}B", "--stripe-count", str(layout.stripe_count)]
    return words


def _mapping(exclusive: bool, options: tuple[str, ...], cookie: str) -> list[str]:
    words = ["--exclusive"] * exclusive
    words += ["--cookie", cookie] if cookie else []
    words += ["--options", ",".join(options)] if options else []
    return words


def _texts(told: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in told.items()}


def _names(told: list[Any]) -> list[str]:
    return [str(one) for one in told]


def _used(told: dict[str, Any]) -> int:
    """Add up what `du` says of the image and of its snapshots."""
    return sum(int(one["used_size"]) for one in told["images"])
