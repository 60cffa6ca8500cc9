"""What a command's exit status means: the table is the documentation, and docs/rbd-commands.md shows it.

rbd ends with the errno of what failed. It does not say what it is that does not exist, so that 2 alone
never means a missing image: the caller looks (rbd.py). What is not in the table is Refused, which is
Unavailable: something may have been made, so that the caller has to come back and look.
"""

from __future__ import annotations

import errno
import re

from csi_multi.contract import PermissionDenied, ResourceExhausted, StorageError, Timeout, Unavailable

from .shell import Answer


class Refused(Unavailable):
    """A command ended with a status that its caller did not expect."""

    status = 0  # 0: it succeeded, and what it said is not understood


class Absent(Refused):
    """Something that the command needs does not exist: an image, snapshot, pool, namespace, kernel module."""


class Missing(Absent):
    """The image, snapshot or entry of the trash that the command is about does not exist: looked up, not guessed."""


class Torn(Absent):
    """A name is listed, and no image is behind it: a command was killed that made it or put it into the trash."""


class Exists(Refused):
    """The name is taken."""


class Linked(Refused):
    """It has snapshots, or clones that need it."""


class Watched(Refused):
    """Somebody has the image or device open."""


class Locked(Refused):
    """Another client holds the image's exclusive lock and does not give it away."""


class Blocked(Refused):
    """The cluster's blocklist has this machine's client."""


class Unreachable(Unavailable):
    """The monitors did not answer in time, or did not accept the user."""

    silent = True  # False: there was an answer, and only the key was wrong, or none


class Full(ResourceExhausted):
    """A pool is full or at its quota."""

    silent = False  # True: no command gets an answer until that changes


class Slow(Timeout):
    """The cluster was reached, and an operation took longer than it may."""


# errno, what the text must have ("": anything), class, what it means
STATUSES: tuple[tuple[int, str, type[StorageError], str], ...] = (
    (errno.ETIMEDOUT, "couldn't connect", Unreachable, "no monitor answered, or none accepted the user and key"),
    (errno.ETIMEDOUT, "", Slow, "an operation on a monitor or OSD took longer than `command_seconds`"),
    (errno.EACCES, "couldn't connect", Unreachable, "the same of the key, from a monitor with a v1 address"),
    (errno.EACCES, "error connecting", Unreachable, "the same, from `ceph`"),
    (errno.EINVAL, "couldn't connect", Unreachable, "a monitor's name is unknown, or the key is none"),
    (1, "timed out", Unreachable, "`ceph` reached no monitor"),  # it has no status of its own for that
    # 1 is also wrong usage, so that the text decides
    (errno.EPERM, "Operation not permitted", PermissionDenied, "the user's caps do not allow it"),
    (errno.EPERM, "EPERM", PermissionDenied, "the same, from `ceph`"),
    (errno.EACCES, "", PermissionDenied, "the user's caps do not allow it"),
    (errno.ENOENT, "failed to retrieve initial metadata", Torn, "the image has no header"),
    (errno.ENOENT, "", Absent, "an image, snapshot, pool or namespace does not exist; a listing tells which"),
    (errno.EEXIST, "", Exists, "the name of an image or snapshot is taken"),
    (errno.ENOTEMPTY, "", Linked, "the image has snapshots, or clones that need it"),
    (errno.EBUSY, "", Watched, "an image or device is in use"),
    (errno.EROFS, "", Locked, "another client has the exclusive lock and keeps it"),
    (errno.ESHUTDOWN, "", Blocked, "the client is on the cluster's blocklist"),
    (errno.ENOSPC, "", Full, "the pool or the cluster is full"),
    (errno.EDQUOT, "", Full, "the pool's quota is reached"),
)

_DEBUG = re.compile(r"^\d{4}-\d\d-\d\dT\S+ [0-9a-f]+ +-?\d+ ")  # 2026-11-21T23:24:05.274+0000 7f373146f6c0 -1
_PROGRESS = re.compile(r"^[\w ]+: \d+% complete.*?(\.\.\.(failed|done)\.?|$)")
_KEY = re.compile(r"key '[^']*'")  # librados shows a key that it does not understand
_HIDDEN = re.compile(r"\b[A-Za-z0-9+/]{38}==|\bAQ[A-Za-z0-9+/]{20,}={0,2}")  # what a key of Ceph looks like


def kind(status: int, text: str = "") -> type[StorageError]:
    """Return the class for a status and what the command said."""
    return next((error for one, some, error, _ in STATUSES if one == status and some in text), Refused)


def failed(what: str, answer: Answer) -> StorageError:
    """Turn an answer other than success into the error to raise. `what` is the command in words."""
    told = said(answer.stderr) if answer.status > 0 else "it crashed or was killed"  # what it dumps then fills pages
    error = kind(answer.status, answer.stderr)(f"{what}: {told} (status {answer.status})")
    if isinstance(error, Refused):
        error.status = answer.status
    return error


def said(stderr: str, limit: int = 400) -> str:
    """Return what a command said about its failure, in one line, without keys, progress and clocks."""
    lines = []
    for line in stderr.splitlines():
        text = _PROGRESS.sub("", _DEBUG.sub("", line.strip())).removeprefix("rbd: ").strip()
        if text and text not in lines:
            lines.append(_HIDDEN.sub("***", _KEY.sub("key ***", text)))
    return "; ".join(lines)[-limit:] or "no output"
