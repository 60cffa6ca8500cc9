"""All failures that a backend or the node engine may raise, as a tree without gRPC.

    StorageError
    ├── InvalidArgument        the request is wrong: name the field, the rule and the remedy
    ├── NotFound               the named object does not exist
    ├── AlreadyExists          the name is taken (the core then compares the existing object)
    ├── OutOfRange             a size, offset or range that can never be served
    ├── ResourceExhausted      out of space, quota, attach slots, or the topology cannot serve it
    ├── FailedPrecondition     the object's state forbids this until it is changed
    │   ├── InUse              still attached, mounted, or depended upon
    │   └── WrongNode          the object is on another node
    ├── Busy                   another operation works on the object; try again
    ├── InvalidToken           a listing token that this driver did not issue or can no longer serve
    ├── Unsupported            the backend cannot do this at all
    ├── Unavailable            the storage system is unreachable, or its response is unclear
    ├── Timeout                no response in time; the work may still be running
    ├── PermissionDenied       credentials are valid but lack a right
    └── Unauthenticated        credentials are absent or wrong

The class decides what the orchestrator does next. After Busy, Unavailable and Timeout the work may still be
running, so it tries again; after ResourceExhausted the scheduler tries another place; every
other class is final: the request counts as without effect, whether the orchestrator makes it again (as after
FailedPrecondition) or not. Never raise a final class while an incomplete resource remains.
rpc/status.py maps the tree to status codes. Any other exception is treated as a bug.
"""


class StorageError(Exception):
    """Base of all expected failures. The message reaches users: no secrets, no tracebacks."""


class InvalidArgument(StorageError):
    """The request is wrong, and repeating it does not help."""


class NotFound(StorageError):
    """The named volume, snapshot, group or node does not exist."""


class AlreadyExists(StorageError):
    """The name is taken."""

    # the volume or snapshot that has it, where the backend has just read it; else the core does
    existing: object = None


class OutOfRange(StorageError):
    """A size, offset or range that can never be served."""


class ResourceExhausted(StorageError):
    """No space, quota, attach slot, or no space in the requested topology."""


class FailedPrecondition(StorageError):
    """The object's present state forbids the operation."""


class InUse(FailedPrecondition):
    """The object is attached, mounted, or something depends on it."""


class WrongNode(FailedPrecondition):
    """The object is on another node than the one that got the request."""


class Busy(StorageError):
    """Another operation holds the object; raised instead of waiting."""


class InvalidToken(StorageError):
    """A listing token that cannot be continued; the caller lists again from the start."""


class Unsupported(StorageError):
    """This backend has no such feature."""


class Unavailable(StorageError):
    """The storage system is unreachable, or its response is unclear."""


class Timeout(StorageError):
    """No response in time; the work may still be running."""


class PermissionDenied(StorageError):
    """Known identity, missing right."""


class Unauthenticated(StorageError):
    """Credentials absent or not accepted."""


NOT_FINAL = (Busy, Unavailable, Timeout)  # errors after which the orchestrator tries again
