"""EC2's error codes and botocore's exceptions, translated to the contract's errors by tables.

Codes are spelled as EC2 spells them (API reference, "Error codes for the Amazon EC2 API"). A code that is not
in the table is Unavailable: the call may have had its effect, so the caller has to retry and check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    InvalidToken,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    StorageError,
    Timeout,
    Unauthenticated,
    Unavailable,
)

from . import botocore_model
from .retries import Outcome


class TokenMismatch(AlreadyExists):
    """The client token was used before, with other parameters."""


class QuotaExceeded(ResourceExhausted):
    """The account's quota in this region is used up."""


class ZoneFull(ResourceExhausted):
    """The zone has no capacity for this volume, or does not offer its type: another zone may."""


class InstanceFull(ResourceExhausted):
    """The instance has as many volumes attached as it may have."""


class IncorrectState(FailedPrecondition):
    """The state of the volume, snapshot or instance does not allow this call."""


class ModificationCooldown(FailedPrecondition):
    """The volume was modified too often or too recently."""


class UnrelatedSnapshots(FailedPrecondition):
    """EBS does not know what changed between these snapshots."""


class VolumeAttached(InUse):
    """The volume is attached."""


class DeviceNameTaken(Busy):
    """The instance has a volume under this device name, or has not finished detaching the last one."""


# EC2's code (* stands for anything), a part of the message in lower case ("": any message), the class of the
# error. The first match counts.
CODES: tuple[tuple[str, str, type[StorageError]], ...] = (
    ("IdempotentParameterMismatch", "", TokenMismatch),
    # Throttling, after botocore's own retries
    ("RequestLimitExceeded", "", Unavailable),
    ("BandwidthLimitExceeded", "", Unavailable),
    ("SnapshotCreationPerVolumeRateExceeded", "", Busy),  # one snapshot of a volume per 15 seconds
    # Capacity and quotas
    ("InsufficientVolumeCapacity", "", ZoneFull),
    ("InsufficientCapacity", "", ZoneFull),
    ("VolumeTypeNotAvailableInZone", "", ZoneFull),
    ("InvalidZone.NotFound", "", ZoneFull),
    ("Unsupported*", "availability zone", ZoneFull),
    ("UnknownVolumeType", "availability zone", ZoneFull),
    ("InvalidParameterValue", "invalid availability zone", ZoneFull),
    ("AttachmentLimitExceeded", "", InstanceFull),
    ("TagLimitExceeded", "", InvalidArgument),
    ("FilterLimitExceeded", "", InvalidArgument),
    ("ResourceCountExceeded", "", QuotaExceeded),
    ("*LimitExceeded", "", QuotaExceeded),  # VolumeLimitExceeded, MaxIOPSLimitExceeded, SnapshotLimitExceeded, ...
    # State
    ("InvalidDevice.InUse", "", DeviceNameTaken),
    ("InvalidParameterValue", "already in use", DeviceNameTaken),  # "Attachment point /dev/xvdba is already in use"
    ("VolumeInUse", "", VolumeAttached),
    ("*.InUse", "", InUse),  # InvalidSnapshot.InUse
    ("VolumeModificationRateExceeded", "", ModificationCooldown),
    ("IncorrectModificationState", "", ModificationCooldown),
    # EBS's own interface, which lists blocks: its code, and its reason where it gives one
    ("ValidationException UNRELATED_SNAPSHOTS", "", UnrelatedSnapshots),
    ("ValidationException INVALID_VOLUME_SIZE", "", UnrelatedSnapshots),
    ("ValidationException INVALID_PAGE_TOKEN", "", InvalidToken),
    ("ValidationException*", "", InvalidArgument),
    ("ResourceNotFoundException*", "", NotFound),
    ("ServiceQuotaExceededException*", "", QuotaExceeded),
    ("IncorrectState", "", IncorrectState),
    ("IncorrectInstanceState", "", IncorrectState),
    ("*.ZoneMismatch", "", FailedPrecondition),  # volume and instance are in different zones
    ("EncryptedVolumesNotSupported", "", FailedPrecondition),  # by this instance type
    # The request
    ("*.NotFound", "", NotFound),  # InvalidVolume, InvalidSnapshot, InvalidInstanceID, InvalidAttachment, ...
    ("InvalidVolumeID.Malformed", "", NotFound),
    ("InvalidSnapshotID.Malformed", "", NotFound),
    ("InvalidInstanceID.Malformed", "", NotFound),
    ("InvalidPaginationToken", "", InvalidToken),
    ("InvalidNextToken", "", InvalidToken),
    ("InvalidParameter*", "", InvalidArgument),
    ("InvalidTagKey.Malformed", "", InvalidArgument),
    ("TagPolicyViolation", "", InvalidArgument),
    ("MissingParameter", "", InvalidArgument),
    ("UnknownParameter", "", InvalidArgument),
    ("UnknownVolumeType", "", InvalidArgument),
    ("VolumeTypeNotAvailableInRegion", "", InvalidArgument),
    ("VolumeIOPSLimit", "", InvalidArgument),
    ("Unsupported*", "", InvalidArgument),  # Unsupported, UnsupportedOperation
    # Credentials
    ("UnauthorizedOperation", "", PermissionDenied),
    ("AccessDenied*", "", PermissionDenied),  # STS: the role may not be assumed
    ("OperationNotPermitted", "", PermissionDenied),
    ("OptInRequired", "", PermissionDenied),
    ("Blocked", "", PermissionDenied),
    ("PendingVerification", "", PermissionDenied),
    ("AuthFailure", "", Unauthenticated),
    ("ExpiredToken*", "", Unauthenticated),
    ("RequestExpired", "", Unauthenticated),
    ("SignatureDoesNotMatch", "", Unauthenticated),
    ("InvalidClientTokenId", "", Unauthenticated),
    ("InvalidAccessKeyId", "", Unauthenticated),
    ("UnrecognizedClientException", "", Unauthenticated),
    ("MissingAuthenticationToken", "", Unauthenticated),
)

THROTTLING = frozenset(
    {
        *("RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled"),
        *("RequestThrottledException", "TooManyRequestsException", "BandwidthLimitExceeded"),
    }
)
WITHOUT_TOKEN = ("CreateSnapshot", "CreateSnapshots")
TRANSIENT_STATUSES = frozenset({500, 502, 503, 504})
TRANSIENT_ERRORS = frozenset({"ConnectionError", "HTTPClientError"})  # botocore's, for connections that fail or break

# botocore's exceptions by name, so that botocore need not be imported. The nearest base class counts.
BOTOCORE_ERRORS: Mapping[str, type[StorageError]] = {
    "ReadTimeoutError": Timeout,
    "NoCredentialsError": Unauthenticated,
    "PartialCredentialsError": Unauthenticated,
    "CredentialRetrievalError": Unauthenticated,
    "TokenRetrievalError": Unauthenticated,
    "SSOError": Unauthenticated,
    "ProfileNotFound": Unauthenticated,
    "InvalidConfigError": Unauthenticated,  # a profile that refers to another one that does not exist
}

_ACTION = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
_ENCODED = re.compile(r"\s*Encoded authorization failure message:\s*\S+", re.IGNORECASE)


def error_class(code: str, message: str = "") -> type[StorageError]:
    """Return the class of the error for an error code of EC2 or STS."""
    text = message.lower()
    return next((error for one, part, error in CODES if fnmatchcase(code, one) and part in text), Unavailable)


def from_response(call: str, response: Mapping[str, Any]) -> StorageError:
    """Turn an error response, as botocore parses it, into the error to raise. `call` is EC2's name for it."""
    fields = response.get("Error", {})
    code, message = fields.get("Code", "no code"), _ENCODED.sub("", fields.get("Message") or "no message")
    code = f"{code} {response.get('Reason') or ''}".rstrip()  # EBS gives one
    about = f"{code}, request {response.get('ResponseMetadata', {}).get('RequestId', 'id unknown')}"
    error = error_class(code, message)
    if error is PermissionDenied:
        action = found[1] if (found := _ACTION.search(message)) else f"{_service(call)}:{call}"
        return error(f"the credentials do not allow {action}: {message} ({about})")
    return error(f"{call}: {message} ({about})")


def _service(call: str) -> str:
    """Return the service of a call as IAM names it."""
    return botocore_model.SERVICES.get(botocore_model.CALLS.get(call, ""), "ec2").replace("-", "")


def outcome(call: str, error: Exception) -> Outcome:
    """Return what an exception of botocore means for another attempt of the call.

    Snapshots have no client tokens: after an answer that was lost another attempt would create a second one.
    """
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # of this call, or of STS before it
        status, code = response.get("ResponseMetadata", {}).get("HTTPStatusCode"), response.get("Error", {}).get("Code")
        if code in THROTTLING:
            return Outcome.THROTTLED
        transient = status in TRANSIENT_STATUSES and not issubclass(error_class(code or ""), ZoneFull)
    else:
        transient = any(base.__name__ in TRANSIENT_ERRORS for base in type(error).__mro__)
    lost = call in WITHOUT_TOKEN and getattr(error, "operation_name", call) == call
    return Outcome.TRANSIENT if transient and not lost else Outcome.FINAL


def from_botocore(call: str, error: Exception) -> StorageError:
    """Turn an exception of botocore, raised instead of a response, into the error to raise."""
    names = [base.__name__ for base in type(error).__mro__]
    found = next((BOTOCORE_ERRORS[name] for name in names if name in BOTOCORE_ERRORS), Unavailable)
    return found(f"{call}: {error} ({names[0]})")
