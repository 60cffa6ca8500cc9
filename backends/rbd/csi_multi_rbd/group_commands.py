"""The commands for groups of images. The driver has such a group only while it makes a group snapshot.

When a group does not exist, these commands say nothing or status 2, as for an image.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from csi_multi.contract import FailedPrecondition

from . import group_program
from .client import JSON, Client
from .connection import memory_file
from .errors import BindingsMissing
from .output import parse_json

PYTHON = "/usr/bin/python3"  # the distribution's: Ceph's bindings are built for it, and the driver's own may be another


class Copied(NamedTuple):
    """Names of images, and of the snapshot that `target` was cloned from."""

    source: str
    since: str
    target: str


class GroupCommands:
    """The groups in the pool and namespace of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def names(self) -> list[str]:
        found: list[str] = self._json("group ls", "group", "ls", self._client.spec("").rstrip("/"))
        return found

    def create(self, group: str) -> None:
        """Raises NameTaken."""
        self._client.connection.rbd("group", "create", self._client.spec(group))

    def remove(self, group: str) -> None:
        """Remove a group, if it exists, with its snapshots of the images, also where one is not complete."""
        self._client.connection.rbd("group", "rm", self._client.spec(group))

    def add(self, group: str, image: str) -> None:
        """Raises NameTaken when the image is in another group, ObjectNotFound for image or group."""
        self._client.connection.rbd("group", "image", "add", self._client.spec(group), self._client.spec(image))

    def images(self, group: str) -> list[str]:
        """Return the names of a group's images, whatever their pools are; none where there is no group."""
        found: list[dict[str, Any]] = self._json("group image ls", "group", "image", "ls", self._client.spec(group))
        return [str(one["image"]) for one in found]

    def create_snapshot(self, group: str, snapshot: str) -> None:
        """Create a snapshot of all images of a group at one moment. Raises NameTaken, ObjectNotFound, ImageLocked."""
        self._client.connection.rbd("group", "snap", "create", self._client.spec(group, snapshot))

    def snapshots(self, group: str) -> list[str]:
        """Return the names of a group's snapshots; none where there is no group."""
        found: list[dict[str, Any]] = self._json("group snap ls", "group", "snap", "ls", self._client.spec(group))
        return [str(one["snapshot"]) for one in found]

    def copy_differences(self, group: str, snapshot: str, members: Sequence[Copied]) -> None:
        """Write to each target what its source had written when the group's snapshot was created, see group_program.

        Raises FailedPrecondition without Ceph's bindings, CephCommandFailed when an image has grown meanwhile.
        """
        config = self._client.connection.config
        job = {
            "pool": config.pool,
            "namespace": config.namespace,
            "group": group,
            "snapshot": snapshot,
            "members": [one._asdict() for one in members],
        }
        with memory_file(json.dumps(job).encode()) as file:
            try:
                common = ("-I", str(Path(group_program.__file__)), *self._client.connection.options())
                self._client.connection.run(PYTHON, common, ("copy", file))
            except BindingsMissing as error:
                raise FailedPrecondition(
                    f"a group snapshot of several volumes needs Ceph's bindings for {PYTHON} on the controller, "
                    f"package python3-rbd: {error}"
                ) from None

    def _json(self, title: str, *words: str) -> Any:
        output = self._client.connection.rbd(*words, *JSON).strip() or "[]"
        return parse_json(f"rbd {title}", output, lambda data: data)
