"""Every failure a backend or the node engine may raise, as a tree without gRPC.

    StorageError
    ├── InvalidArgument        the request is wrong: name the field, the rule and the remedy
    ├── NotFound               the named thing does not exist
    ├── AlreadyExists          the name is taken (the core then compares what is there)
    ├── OutOfRange             a size, offset or range that can never be served
    ├── ResourceExhausted      out of space, quota, attach slots, or the topology cannot serve it
    ├── FailedPrecondition     the object's state forbids this until somebody changes it
    │   ├── InUse              still attached, mounted, or depended upon
    │   └── WrongNode          the object lives on another node
    ├── Busy                   the same object is being worked on; ask again
    ├── InvalidToken           a listing token that this driver did not issue or can no longer serve
    ├── Unsupported            the backend cannot do this at all
    ├── Unavailable            the storage system cannot be reached, or gave no clear answer
    ├── Timeout                it did not answer in time; the work may still be running
    ├── PermissionDenied       credentials are valid but lack a right
    └── Unauthenticated        credentials are absent or wrong

The class decides what the orchestrator does next. Busy, Unavailable and Timeout mean "may still be
running", so it keeps the volume in mind; ResourceExhausted lets the scheduler try elsewhere; every
other class is final. Never raise a final class while something half-made is left behind.
rpc/status.py maps the tree to status codes. Anything raised outside it is treated as a bug.
"""


class StorageError(Exception):
    """Base of all expected failures. The message reaches users: no secrets, no tracebacks."""


class InvalidArgument(StorageError):
    """The request is wrong and will stay wrong."""


class NotFound(StorageError):
    """The named volume, snapshot, group or node does not exist."""


class AlreadyExists(StorageError):
    """The name is taken."""


class OutOfRange(StorageError):
    """A size, offset or range that can never be served."""


class ResourceExhausted(StorageError):
    """No space, quota, attach slot, or no room in the requested topology."""


class FailedPrecondition(StorageError):
    """The object's present state forbids the operation."""


class InUse(FailedPrecondition):
    """The object is attached, mounted, or something depends on it."""


class WrongNode(FailedPrecondition):
    """The object lives on another node than the one that was asked."""


class Busy(StorageError):
    """Another operation holds the object. Raised instead of waiting."""


class InvalidToken(StorageError):
    """A listing token that cannot be continued; the caller starts again."""


class Unsupported(StorageError):
    """This backend has no such feature."""


class Unavailable(StorageError):
    """The storage system cannot be reached or gave no clear answer."""


class Timeout(StorageError):
    """No answer in time. The work may still be running."""


class PermissionDenied(StorageError):
    """Known identity, missing right."""


class Unauthenticated(StorageError):
    """Credentials absent or not accepted."""
