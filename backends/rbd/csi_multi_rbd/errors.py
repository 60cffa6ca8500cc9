"""Failures of rbd and ceph, translated to errors by the table STATUSES, which docs/rbd-commands.md shows.

rbd exits with the errno of the failure. Status 2 does not say what does not exist, so it never means a missing image
by itself: client.py lists the images. A status that is not in the table becomes CephCommandFailed, which is
Unavailable: the command may have created something, so the caller has to try again.
"""

from __future__ import annotations

import errno
import re

from csi_multi.contract import PermissionDenied, ResourceExhausted, Result, StorageError, Timeout, Unavailable


class CephCommandFailed(Unavailable):
    """A command exited with a status that its caller did not expect."""

    status = 0  # 0: the command succeeded, and its output is not understood


class ObjectNotFound(CephCommandFailed):
    """Something that the command needs does not exist: an image, snapshot, pool, namespace or kernel module."""


class ImageNotFound(ObjectNotFound):
    """The image, snapshot or trash entry of the command does not exist, as a listing confirmed."""


class BrokenImage(ObjectNotFound):
    """A pool lists an image whose header is missing: a command that created or trashed it was killed."""


class ParentLost(ObjectNotFound):
    """The parent of an image does not exist any more, so rbd does not open the image."""


class NameTaken(CephCommandFailed):
    """An image or snapshot has the name already."""


class HasDependents(CephCommandFailed):
    """The image has snapshots, or clones that need it."""


class ImageInUse(CephCommandFailed):
    """A client has the image or device open."""


class ImageLocked(CephCommandFailed):
    """Another client holds the image's exclusive lock and does not release it."""


class ClientBlocklisted(CephCommandFailed):
    """This machine's client is on the cluster's blocklist."""


class BindingsMissing(CephCommandFailed):
    """The distribution's Python has no bindings of Ceph."""


class ClusterUnreachable(Unavailable):
    """The monitors did not answer in time, or did not accept the user."""

    silent = True  # False: a monitor answered, and the key of the request is wrong or missing


class PoolFull(ResourceExhausted):
    """A pool is full or at its quota."""

    silent = False  # True: no command is answered until the pool has free space


class OperationTimedOut(Timeout):
    """The cluster was reached, and an operation exceeded its time limit."""


# errno, text that stderr must contain ("": any), class, meaning
STATUSES: tuple[tuple[int, str, type[StorageError], str], ...] = (
    (errno.ETIMEDOUT, "couldn't connect", ClusterUnreachable, "no monitor answered, or none accepted user and key"),
    (errno.ETIMEDOUT, "", OperationTimedOut, "an operation on a monitor or OSD exceeded `command_seconds`"),
    (errno.EACCES, "couldn't connect", ClusterUnreachable, "a monitor with a v1 address did not accept the key"),
    (errno.EACCES, "error connecting", ClusterUnreachable, "the same, from `ceph`"),
    (errno.EINVAL, "couldn't connect", ClusterUnreachable, "a monitor's name is unknown, or the key is not a key"),
    (1, "timed out", ClusterUnreachable, "`ceph` reached no monitor"),  # ceph has no status of its own for this
    (1, "(2) No such file", ObjectNotFound, "`rados`, which has no other status: no such object, pool or namespace"),
    # wrong usage is status 1 too, so the text decides
    (errno.EPERM, "Operation not permitted", PermissionDenied, "the user's caps do not allow it"),
    (errno.EPERM, "EPERM", PermissionDenied, "the same, from `ceph`"),
    (errno.EACCES, "", PermissionDenied, "the user's caps do not allow it"),
    (errno.ENOENT, "failed to retrieve initial metadata", BrokenImage, "the image has no header"),
    (
        errno.ENOENT,
        "RefreshParentRequest: failed to open parent",
        ParentLost,
        "the image names a parent that does not exist",
    ),
    (errno.ENOENT, "", ObjectNotFound, "an image, snapshot, pool or namespace does not exist; a listing shows which"),
    (errno.EEXIST, "", NameTaken, "an image or snapshot has the name already"),
    (errno.ENOTEMPTY, "", HasDependents, "the image has snapshots, or clones that need it"),
    (errno.EBUSY, "", ImageInUse, "an image or device is in use"),
    (errno.EROFS, "", ImageLocked, "another client holds the exclusive lock and keeps it"),
    (errno.ESHUTDOWN, "", ClientBlocklisted, "the client is on the cluster's blocklist"),
    (errno.ENOPKG, "no bindings of Ceph", BindingsMissing, "group_program.py: python3-rbd is not installed"),
    (errno.ENOSPC, "", PoolFull, "the pool or the cluster is full"),
    (errno.EDQUOT, "", PoolFull, "the pool's quota is reached"),
)

_DEBUG = re.compile(r"^\d{4}-\d\d-\d\dT\S+ [0-9a-f]+ +-?\d+ ")  # 2026-11-21T23:24:05.274+0000 7f373146f6c0 -1
_PROGRESS = re.compile(r"^[\w ]+: \d+% complete.*?(\.\.\.(failed|done)\.?|$)")
_KEY = re.compile(r"key '[^']*'|(?<=error setting modifier for ).*")  # librados prints what it cannot parse
_HIDDEN = re.compile(r"\b[A-Za-z0-9+/]{38}==|\bAQ[A-Za-z0-9+/]{20,}={0,2}")  # the shape of a Ceph key


def error_class(status: int, text: str = "") -> type[StorageError]:
    """Return the class of error for an exit status and the text that the command printed."""
    return next((error for one, some, error, _ in STATUSES if one == status and some in text), CephCommandFailed)


def error_for(what: str, result: Result) -> StorageError:
    """Return the error for a command that failed. `what` names the command."""
    # a crash dumps pages of text
    text = readable(result.stderr) if result.status > 0 else "it crashed or was killed"
    error = error_class(result.status, result.stderr)(f"{what}: {text} (status {result.status})")
    if isinstance(error, CephCommandFailed):
        error.status = result.status
    return error


def readable(stderr: str, limit: int = 400) -> str:
    """Return what a command printed about its failure in one line, without keys, progress and timestamps."""
    lines = []
    for line in stderr.splitlines():
        text = _PROGRESS.sub("", _DEBUG.sub("", line.strip())).removeprefix("rbd: ").strip()
        if text and text not in lines:
            lines.append(_HIDDEN.sub("***", _KEY.sub("key ***", text)))
    return "; ".join(lines)[-limit:] or "no output"
