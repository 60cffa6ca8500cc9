"""The commands of rbd and ceph: answers become typed values (resources.py), failures the classes of errors.py.

When something does not exist, rbd does not say what. So every method that may raise ImageNotFound lists the images
before it does: a missing pool, namespace or parent is never taken for a missing image.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec

from csi_multi.contract import InUse, PermissionDenied, Strings

from . import labels, resources
from .circuit_breaker import CircuitBreaker
from .command import CommandRunner
from .config import Config
from .connection import Connection, memory_file
from .errors import (
    BrokenImage,
    CephCommandFailed,
    ImageInUse,
    ImageNotFound,
    ObjectNotFound,
    OperationTimedOut,
    ParentLost,
)
from .output import parse_json, read
from .resources import (
    ClusterStatus,
    DiffRow,
    Image,
    ImageLayout,
    ImageSnapshot,
    ListedImage,
    MapKind,
    PoolListing,
    PoolUsage,
    TrashEntry,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

JSON = ("--format", "json")
NO_PROGRESS = "--no-progress"
ERRORS_TO_STDERR = "--err-to-stderr=true"  # whatever ceph.conf says
LIBRARY = "librbd::"  # the library reports what an image lacks; the command itself reports that there is no image
CLONE = ("--rbd-default-clone-format", "2")  # snapshots need no protection, and can be removed before their clones


class Client:
    """The images of one pool and namespace, as one user. Thread-safe."""

    def __init__(
        self,
        config: Config,
        runner: CommandRunner | None = None,
        breaker: CircuitBreaker | None = None,
        *,
        connection: Connection | None = None,
    ) -> None:
        self.connection = connection or Connection(config, runner, breaker)
        self._namespace = "/".join(filter(None, (config.pool, config.namespace)))

    @contextlib.contextmanager
    def as_user(self, secrets: Strings) -> Iterator[Client]:
        """Yield a client for the user in a request's secrets; this one if there is none. Raises InvalidArgument."""
        with self.connection.as_user(secrets) as connection:
            yield self if connection is self.connection else Client(connection.config, connection=connection)

    def spec(self, image: str, snapshot: str = "") -> str:
        return f"{self._namespace}/{image}" + (f"@{snapshot}" if snapshot else "")

    def info(self, image: str) -> Image:
        """Raises ImageNotFound, BrokenImage, ParentLost."""
        with self._confirming(image):
            try:
                return self._json(resources.image, "info", self.spec(image), ERRORS_TO_STDERR)
            except ParentLost as error:
                raise ParentLost(
                    f"image {self.spec(image)} cannot be opened, since its parent does not exist any more; see "
                    f"Recovery in docs/rbd.md ({error})"
                ) from None
            except ObjectNotFound as error:
                if LIBRARY in str(error):
                    raise  # the image exists, and something else is missing, for example its parent
                raise BrokenImage(
                    f"{error}; the pool lists the image, but its header is missing: "
                    "deleting or creating it again removes the rest"
                ) from None

    def metadata(self, image: str) -> dict[str, str]:
        """Raises ImageNotFound."""
        with self._confirming(image):
            return self._json(_strings, "image-meta", "list", self.spec(image), empty="{}")

    def watchers(self, image: str) -> tuple[str, ...]:
        """Return the addresses of the clients that have the image open. Raises ImageNotFound."""
        with self._confirming(image):
            data = self._json(lambda data: [one["address"] for one in data["watchers"]], "status", self.spec(image))
        return tuple(dict.fromkeys(data))

    def image_names(self) -> list[str]:
        return self._json(_names, "ls", self._namespace)

    def images(self) -> list[ListedImage]:
        """Return all images that can be opened; rbd opens each of them."""
        return self._json(resources.listed, "ls", self._namespace, "--long", partial=True)

    def listing(self) -> PoolListing:
        """Return all images that can be opened, and all their user snapshots; rbd opens each image."""
        return self._json(resources.pool_listing, "ls", self._namespace, "--long", partial=True)

    def snapshots(self, image: str) -> list[ImageSnapshot]:
        """Return all snapshots of an image, including those in the trash namespace. Raises ImageNotFound."""
        with self._confirming(image):
            return self._snapshots(self.spec(image))

    def children(self, image: str) -> list[str]:
        """Return the names of its clones in this pool and namespace. Raises ImageNotFound."""
        with self._confirming(image):
            return self._json(self._in_namespace, "children", self.spec(image))

    def used_bytes(self, image: str, *, exact: bool = True) -> int:
        """Return the bytes of the image's own objects; not `exact`: of whole objects, at once where it has `fast-diff`.

        Raises ImageNotFound.
        """
        with self._confirming(image):
            return self._json(_used, "du", self.spec(image), *["--exact"] * exact)

    def allocated(self, image: str) -> list[DiffRow]:
        """Return which objects of an image hold data, those of its ancestors included. Raises ImageNotFound."""
        with self._confirming(image):
            text = self.connection.rbd("diff", self.spec(image), "--whole-object", *JSON)
        return read("rbd diff", text.strip() or "[]", partial(msgspec.json.decode, type=list[DiffRow]))

    def list_trash(self) -> list[TrashEntry]:
        return self._json(
            lambda data: [resources.trash_entry(one) for one in data], "trash", "ls", self._namespace, "--all"
        )

    def create(self, image: str, size: int, layout: ImageLayout, metadata: Strings) -> None:
        """Create an empty image with its image-meta: one command takes half the time of two. Raises NameTaken."""
        with memory_file(labels.empty_image(size, metadata)) as file:
            self.connection.rbd(
                "import", file, self.spec(image), "--export-format", "2", NO_PROGRESS, *_layout_options(layout)
            )

    def clone(self, source: str, snapshot: str, image: str, layout: ImageLayout) -> None:
        """Create an image with the data of a snapshot. Raises NameTaken, ImageNotFound for source or snapshot."""
        with self._confirming(source, snapshot):
            self.connection.rbd(
                "clone", self.spec(source, snapshot), self.spec(image), *CLONE, *_layout_options(layout)
            )

    def set_metadata(self, image: str, key: str, value: str) -> None:
        """Set one key of the image-meta. Raises ImageNotFound."""
        with self._confirming(image):
            self.connection.rbd("image-meta", "set", self.spec(image), key, value)

    def remove_metadata(self, image: str, key: str) -> None:
        """Remove one key of the image-meta, if it is set. Raises ImageNotFound."""
        with contextlib.suppress(ObjectNotFound), self._confirming(image):
            self.connection.rbd("image-meta", "remove", self.spec(image), key)

    def rename(self, image: str, name: str) -> None:
        """Rename an image, which may be open. Raises NameTaken, ImageNotFound."""
        with self._confirming(image):
            self.connection.rbd("mv", self.spec(image), self.spec(name))

    def resize(self, image: str, size: int) -> None:
        """Enlarge an image. Raises ImageNotFound, CephCommandFailed when it is larger already, ImageLocked."""
        try:
            with self._confirming(image):
                self.connection.rbd("resize", self.spec(image), NO_PROGRESS, "--size", f"{size}B")
        except CephCommandFailed as error:
            if error.status != errno.EINVAL or self.info(image).size != size:
                raise

    def create_snapshot(self, image: str, snapshot: str) -> None:
        """Create a snapshot. Raises NameTaken, ImageNotFound, ImageLocked."""
        with self._confirming(image):
            self.connection.rbd("snap", "create", self.spec(image, snapshot), NO_PROGRESS)

    def remove_snapshot(self, image: str, snapshot: str) -> bool:
        """Remove a snapshot; return whether it existed. Ceph keeps it in its trash namespace while clones need it."""
        with contextlib.suppress(ImageNotFound), self._confirming(image, snapshot):
            self.connection.rbd("snap", "rm", self.spec(image, snapshot), NO_PROGRESS)
            return True
        return False

    def move_to_trash(self, image: str) -> None:
        """Move an image to the trash. Raises ImageNotFound, ImageInUse."""
        with self._confirming(image):
            self.connection.rbd("trash", "mv", self.spec(image))

    def delete_from_trash(self, id: str) -> None:
        """Delete an image in the trash.

        Raises HasDependents while clones or snapshots need it, ImageNotFound, ImageInUse.
        """
        try:
            self.connection.rbd("trash", "rm", f"{self._namespace}/{id}", NO_PROGRESS, unlimited=True)
        except ObjectNotFound as error:
            if all(one.id != id for one in self.list_trash()):
                raise ImageNotFound(f"the trash of {self._namespace} has no image with id {id}") from None
            raise error

    def trashed_snapshots(self, id: str) -> list[ImageSnapshot]:
        """Return all snapshots of an image in the trash, as `snapshots` does. Raises ObjectNotFound."""
        return self._snapshots(*self._by_id(id))

    def remove_trashed_snapshot(self, id: str, snapshot: str) -> None:
        """Remove a snapshot of an image in the trash, as `remove_snapshot` does. Raises ObjectNotFound."""
        self.connection.rbd("snap", "rm", *self._by_id(id), "--snap", snapshot, NO_PROGRESS)

    def remove(self, image: str) -> None:
        """Delete an empty image, without the trash. Raises ImageNotFound, HasDependents, ImageInUse."""
        with self._confirming(image):
            self.connection.rbd("rm", self.spec(image), NO_PROGRESS)

    def flatten(self, image: str) -> None:
        """Copy the data that an image shares with its parent into the image. Raises ImageNotFound."""
        try:
            with self._confirming(image):
                self.connection.rbd("flatten", self.spec(image), NO_PROGRESS, unlimited=True)
        except CephCommandFailed as error:
            if error.status != errno.EINVAL or self.info(image).parent:
                raise

    def blocklist(self, address: str, seconds: int) -> None:
        """Cut a client off from the cluster: after this no OSD does anything for it. It may be so already."""
        self.connection.ceph("osd", "blocklist", "add", address, str(seconds))

    def map(
        self,
        image: str,
        *,
        kind: MapKind,
        read_only: bool,
        exclusive: bool,
        options: tuple[str, ...],
        cookie: str = "",
    ) -> str:
        """Map an image and return the device.

        Raises ImageNotFound, ImageLocked, ClientBlocklisted, and CephCommandFailed with the status of the kernel or of
        rbd-nbd.
        """
        words = ["--read-only"] * read_only + _map_options(exclusive, options, cookie)
        with self._confirming(image):
            return self.connection.device(kind, "map", self.spec(image), *words).strip()

    def attach(self, image: str, *, device: str, exclusive: bool, options: tuple[str, ...], cookie: str = "") -> None:
        """Start a new rbd-nbd for a device whose process has died. Raises as map does."""
        with self._confirming(image):
            words = ("--device", device, *_map_options(exclusive, options, cookie))
            self.connection.device("nbd", "attach", self.spec(image), *words)

    def unmap(self, device: str, *, kind: MapKind, options: tuple[str, ...] = ()) -> None:
        """End a mapping, which needs neither the cluster nor a user. Raises InUse."""
        try:
            self.connection.local("device", "unmap", device, "--device-type", kind, *_map_options(False, options, ""))
        except ImageInUse as error:
            raise InUse(f"{device} is in use: {error}") from None

    def _json(self, reader: Callable[[Any], T], *words: str, empty: str = "", partial: bool = False) -> T:
        """Run rbd and parse its JSON. `empty` is what no output stands for."""
        return parse_json(
            f"rbd {words[0]}", self.connection.rbd(*words, *JSON, partial=partial).strip() or empty, reader
        )

    @contextlib.contextmanager
    def _confirming(self, image: str, snapshot: str = "") -> Iterator[None]:
        """Raise ImageNotFound in the block only for what a listing lacks: that fails without the pool or namespace."""
        try:
            yield
        except ObjectNotFound as error:
            if image not in self._existing_names():
                raise ImageNotFound(f"image {self.spec(image)} does not exist") from None
            if snapshot and all(one.name != snapshot for one in self.snapshots(image)):
                raise ImageNotFound(f"snapshot {self.spec(image, snapshot)} does not exist") from None
            raise error

    def _snapshots(self, *image: str) -> list[ImageSnapshot]:
        return self._json(lambda data: [resources.snapshot(one) for one in data], "snap", "ls", *image, "--all")

    def _by_id(self, id: str) -> tuple[str, ...]:
        """Return the words for an image that has no name any more."""
        pool, _, namespace = self._namespace.partition("/")
        return ("--pool", pool, *(("--namespace", namespace) if namespace else ()), "--image-id", id)

    def _existing_names(self) -> list[str]:
        try:
            return self.image_names()
        except ObjectNotFound as error:
            raise ObjectNotFound(
                f"{error}; the pool, or the namespace in it, does not exist: create it ('rbd pool init', "
                "'rbd namespace create'), or name another one in the driver's configuration"
            ) from None

    def _in_namespace(self, data: list[resources.Json]) -> list[str]:
        places = ((one["pool"], one.get("pool_namespace", ""), one["image"]) for one in data)
        return [
            image for pool, namespace, image in places if "/".join(filter(None, (pool, namespace))) == self._namespace
        ]


class ClusterClient:
    """One cluster, as the instance's user, with the `ceph` command. Thread-safe."""

    def __init__(
        self, config: Config, runner: CommandRunner | None = None, breaker: CircuitBreaker | None = None
    ) -> None:
        self._connection = Connection(config, runner, breaker)

    def pool_usages(self) -> dict[str, PoolUsage]:
        return parse_json("ceph df", self._connection.ceph("df", "detail", *JSON), resources.pool_usages)

    def status(self) -> ClusterStatus:
        return parse_json("ceph status", self._connection.ceph("status", *JSON), resources.status)

    def report(self) -> tuple[ClusterStatus, dict[str, PoolUsage]]:
        """Return status and usage of all pools, by one command."""
        status, usages = self._connection.ceph_each("status", "df detail")
        return read("ceph status", status, resources.status), read("ceph df", usages, resources.pool_usages)

    @property
    def is_silent(self) -> bool:
        """Whether the last command got no answer, so that others are refused."""
        return self._connection.breaker.is_open

    def queue_flatten(self, spec: str) -> bool:
        """Have ceph-mgr flatten an image. False when it, its module rbd_support or the user's right is missing."""
        try:
            self._connection.ceph("rbd", "task", "add", "flatten", spec, quick=True)
        except (CephCommandFailed, OperationTimedOut, PermissionDenied) as error:
            log.info("ceph-mgr rejected the task to flatten %s: %s; the driver flattens it itself", spec, error)
            return False
        return True


def _layout_options(layout: ImageLayout) -> list[str]:
    words = [f"--image-feature={feature}" for feature in layout.features]
    words += ["--data-pool", layout.data_pool] if layout.data_pool else []
    words += ["--object-size", f"{layout.object_size}B"] if layout.object_size else []
    if layout.stripe_unit:
        words += ["--stripe-unit", f"{layout.stripe_unit}B", "--stripe-count", str(layout.stripe_count)]
    return words


def _map_options(exclusive: bool, options: tuple[str, ...], cookie: str) -> list[str]:
    words = ["--exclusive"] * exclusive
    words += ["--cookie", cookie] if cookie else []
    words += ["--options", ",".join(options)] if options else []
    return words


def _strings(data: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in data.items()}


def _names(data: list[Any]) -> list[str]:
    return [str(one) for one in data]


def _used(data: dict[str, Any]) -> int:
    """Add up the output of `rbd du` for the image and its snapshots."""
    return sum(int(one["used_size"]) for one in data["images"])
