"""The contents of a namespace of a pool: listed, and removed whatever they are."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ceph_commands import Commands

HEADER = "rbd_header."
AT_ONCE = 500  # objects that one command removes
MISSING = re.compile(r"error removing \S+/(\S+): \(2\)")


def everything(cluster: Commands, namespace: str) -> list[str]:
    """Return every image, snapshot (those in the trash namespace too) and trash entry, and who watches an image."""
    where = ("--pool", cluster.pool, "--namespace", namespace, "--format", "json")
    found = []
    for image in json.loads(cluster.rbd("ls", *where)):
        found.append(f"image {image}")
        cuts = json.loads(cluster.rbd("snap", "ls", "--all", *where, "--image", image))
        found += [f"snapshot {image}@{cut['name']} ({cut['namespace']['type']})" for cut in cuts]
    found += [f"group {one}" for one in json.loads(cluster.rbd("group", "ls", *where))]
    found += [f"trash {one['name']}" for one in json.loads(cluster.rbd("trash", "ls", "--all", *where))]
    return sorted(found + watched(cluster, namespace))


def watched(cluster: Commands, namespace: str) -> list[str]:
    """Return who has an image open: a mapping, or a command that still runs."""
    found = []
    for name in _objects(cluster, namespace):
        if name.startswith(HEADER):
            lines = _watchers(cluster, namespace, name)
            found += [f"watcher of {name.removeprefix(HEADER)}: {line}" for line in lines]
    return sorted(found)


def empty(cluster: Commands, namespace: str) -> None:
    """Remove its objects, whatever they are and whoever uses them: faster than image by image, and always possible.

    A command ends at the first object that it finds missing: the background of a driver was quicker with it, or only
    a snapshot has it still, which `rados ls` goes on naming and nothing here can remove. Either is passed over.
    """
    from .ceph_commands import CephFailed

    missing = set[str]()
    while names := [name for name in _objects(cluster, namespace) if name not in missing]:
        try:
            cluster.rados("--pool", cluster.pool, "--namespace", namespace, "rm", *names[:AT_ONCE])
        except CephFailed as error:
            found = MISSING.search(str(error))
            if not found:
                raise
            missing.add(found[1])


def _watchers(cluster: Commands, namespace: str, name: str) -> list[str]:
    """Return the lines about an object's watchers; none of one that has gone since it was listed."""
    from .ceph_commands import CephFailed

    try:
        return cluster.rados("--pool", cluster.pool, "--namespace", namespace, "listwatchers", name).splitlines()
    except CephFailed:
        if name in _objects(cluster, namespace):
            raise
        return []


def _objects(cluster: Commands, namespace: str) -> list[str]:
    return cluster.rados("--pool", cluster.pool, "--namespace", namespace, "ls").splitlines()
