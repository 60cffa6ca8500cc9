"""Error class -> status code: the only place that decides codes (csi-spec 2.1 and section 3).

docs/status-codes.md says what each caller does with each code.
"""

from __future__ import annotations

import grpc

from ..contract import errors

CODES: dict[type[errors.StorageError], grpc.StatusCode] = {
    errors.StorageError: grpc.StatusCode.UNAVAILABLE,  # not final, because the base class says nothing about the state
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.OutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InUse: grpc.StatusCode.FAILED_PRECONDITION,
    errors.WrongNode: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Busy: grpc.StatusCode.ABORTED,
    errors.InvalidToken: grpc.StatusCode.ABORTED,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.Timeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
}

# Refused credentials say nothing about what an earlier try has made, so no code may let the caller forget the request.
UNKNOWN_STATE: dict[type[errors.StorageError], grpc.StatusCode] = {
    errors.PermissionDenied: grpc.StatusCode.UNAVAILABLE,
    errors.Unauthenticated: grpc.StatusCode.UNAVAILABLE,
}

# RPCs whose caller does something else with the code above. After a code that is not final, external-resizer never lets
# a claim take its size back, and only INVALID_ARGUMENT lets a claim leave its class. FAILED_PRECONDITION means to it
# that the volume grows only while it is not in use: it does not ask again as long as a pod has the volume.
CODES_OF_RPC: dict[str, dict[type[errors.StorageError], grpc.StatusCode]] = {
    "CreateVolume": UNKNOWN_STATE,
    "CreateSnapshot": UNKNOWN_STATE,
    "CreateVolumeGroupSnapshot": UNKNOWN_STATE,
    "NodeStageVolume": UNKNOWN_STATE,
    "NodePublishVolume": UNKNOWN_STATE,
    "ControllerExpandVolume": {
        errors.ResourceExhausted: grpc.StatusCode.OUT_OF_RANGE,
        errors.FailedPrecondition: grpc.StatusCode.OUT_OF_RANGE,
        errors.WrongNode: grpc.StatusCode.OUT_OF_RANGE,
    },
    "ControllerModifyVolume": {
        errors.ResourceExhausted: grpc.StatusCode.INVALID_ARGUMENT,
        errors.OutOfRange: grpc.StatusCode.INVALID_ARGUMENT,
    },
}


class ForwardedError(errors.StorageError):
    """The error of the driver that an RPC was forwarded to; the caller gets code, text and metadata unchanged."""

    def __init__(self, code: grpc.StatusCode, text: str, trailing: tuple[tuple[str, str | bytes], ...] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.trailing = trailing


def code_of(error: errors.StorageError, rpc: str = "") -> grpc.StatusCode:
    """Return the code of the most specific class that is in the table of the RPC or, without one, in CODES."""
    if isinstance(error, ForwardedError):
        return error.code
    codes = {**CODES, **CODES_OF_RPC.get(rpc, {})}
    return next(codes[cls] for cls in type(error).__mro__ if cls in codes)
