"""Clones that `rbd clone` left half made: it writes the parent into the clone, and then the clone into the parent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend

from csi_multi.contract import Snapshot, Volume

from .ceph import Cluster
from .commands import Died, watched
from .volumes import image, info, rados

Written = Literal["in the clone", "in the parent"]


class Header:
    """What an image says of its snapshots, among others which clones they have."""

    def __init__(self, cluster: Cluster, backend: RbdBackend, one: Volume | Snapshot, directory: Path) -> None:
        self._run = partial(rados, cluster, backend)
        self._name = f"rbd_header.{info(cluster, backend, one)['id']}"
        self._directory = directory

    def keep(self) -> None:
        for key in self._keys():
            self._run("getomapval", self._name, key, str(self._directory / key))

    def restore(self) -> None:
        for key in self._keys():
            file = self._directory / key
            if file.exists():
                self._run("setomapval", self._name, key, given=file.read_bytes())
            else:
                self._run("rmomapkey", self._name, key)

    def _keys(self) -> list[str]:
        return [key for key in self._run("listomapkeys", self._name).split() if key.startswith(("snap", "op_"))]


def killed_between(
    cluster: Cluster,
    backend: RbdBackend,
    source: Volume | Snapshot,
    act: Callable[[], object],
    directory: Path,
    written: Written = "in the clone",
) -> str:
    """Let driver and `rbd clone` be killed when only one side is written; return the name of the half-made image."""
    header, made = Header(cluster, backend, source, directory), list[str]()

    def before(command: str) -> None:
        if command.startswith("rbd clone"):
            header.keep()

    def after(command: str) -> None:
        if command.startswith("rbd clone"):
            made.append(command.split("/")[-1])
            tear(cluster, backend, made[0], "" if written == "in the clone" else "parent")
            if written == "in the clone":
                header.restore()
            raise Died(command)

    with watched(before, after):
        try:
            act()
        except Died:
            return made[0]
    raise AssertionError("no clone was made")


def tear(cluster: Cluster, backend: RbdBackend, name: str, *more: str) -> None:
    """Take from an image what `rbd clone` writes last, its image-meta, and other keys of its header."""
    header = f"rbd_header.{image_id(cluster, backend, name)}"
    for key in (f"metadata_{labels.KEY}", *filter(None, more)):
        rados(cluster, backend, "rmomapkey", header, key)


def image_id(cluster: Cluster, backend: RbdBackend, name: str) -> str:
    """Return the id of an image that rbd may be unable to open."""
    return rados(cluster, backend, "get", f"rbd_id.{name}", "-")[4:]


def cut_by_hand(cluster: Cluster, backend: RbdBackend, source: Volume | Snapshot) -> None:
    """Remove the snapshots of an image, as an operator or an earlier version of the driver did."""
    where = "/".join(filter(None, (backend.config.pool, backend.config.namespace, image(backend, source))))
    cluster.rbd("snap", "purge", "--no-progress", where)
