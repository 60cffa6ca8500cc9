"""EC2's error codes and botocore's failures -> the errors of the contract. The table is the documentation.

Codes are spelled as EC2 spells them (API reference, "Error codes for the Amazon EC2 API"). What is not
in the table is Unavailable: something may have been made, so that the caller has to come back and look.
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


class TokenMismatch(AlreadyExists):
    """The client token was used before, with other parameters."""


class Quota(ResourceExhausted):
    """The account has as many of these as it may have in this region."""


class ZoneFull(ResourceExhausted):
    """The zone has no room for this volume, or does not offer its type: another zone may."""


class Full(ResourceExhausted):
    """The instance has as many volumes as it may have."""


class WrongState(FailedPrecondition):
    """The volume, snapshot or instance is not in a state that allows this."""


class Cooldown(FailedPrecondition):
    """The volume was modified too often or too recently."""


class Attached(InUse):
    """The volume is attached."""


class DeviceTaken(Busy):
    """The instance has a volume under this device name, or is not done with the last one."""


# Code (* stands for anything), text of the message in lower case ("": any), class. The first that fits counts.
CODES: tuple[tuple[str, str, type[StorageError]], ...] = (
    ("IdempotentParameterMismatch", "", TokenMismatch),
    # Throttling, after botocore's own retries
    ("RequestLimitExceeded", "", Unavailable),
    ("BandwidthLimitExceeded", "", Unavailable),
    ("SnapshotCreationPerVolumeRateExceeded", "", Busy),  # one snapshot of a volume per 15 seconds
    # Room
    ("InsufficientVolumeCapacity", "", ZoneFull),
    ("InsufficientCapacity", "", ZoneFull),
    ("VolumeTypeNotAvailableInZone", "", ZoneFull),
    ("InvalidZone.NotFound", "", ZoneFull),
    ("Unsupported*", "availability zone", ZoneFull),
    ("UnknownVolumeType", "availability zone", ZoneFull),
    ("InvalidParameterValue", "invalid availability zone", ZoneFull),
    ("AttachmentLimitExceeded", "", Full),
    ("TagLimitExceeded", "", InvalidArgument),
    ("FilterLimitExceeded", "", InvalidArgument),
    ("ResourceCountExceeded", "", Quota),
    ("*LimitExceeded", "", Quota),  # VolumeLimitExceeded, MaxIOPSLimitExceeded, SnapshotLimitExceeded, ...
    # State
    ("InvalidDevice.InUse", "", DeviceTaken),
    ("InvalidParameterValue", "already in use", DeviceTaken),  # "Attachment point /dev/xvdba is already in use"
    ("VolumeInUse", "", Attached),
    ("*.InUse", "", InUse),  # InvalidSnapshot.InUse
    ("VolumeModificationRateExceeded", "", Cooldown),
    ("IncorrectModificationState", "", Cooldown),
    ("IncorrectState", "", WrongState),
    ("IncorrectInstanceState", "", WrongState),
    ("*.ZoneMismatch", "", FailedPrecondition),  # volume and instance lie in different zones
    ("EncryptedVolumesNotSupported", "", FailedPrecondition),  # by this instance type
    # What was asked for
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

# botocore's exceptions by name, so that nothing of botocore is imported for it. The nearest base counts.
FAILURES: Mapping[str, type[StorageError]] = {
    "ReadTimeoutError": Timeout,
    "NoCredentialsError": Unauthenticated,
    "PartialCredentialsError": Unauthenticated,
    "CredentialRetrievalError": Unauthenticated,
    "TokenRetrievalError": Unauthenticated,
    "SSOError": Unauthenticated,
    "ProfileNotFound": Unauthenticated,
    "InvalidConfigError": Unauthenticated,  # a profile that refers to what is not there
}

_ACTION = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
_UNREADABLE = re.compile(r"\s*Encoded authorization failure message:\s*\S+", re.IGNORECASE)


def kind(code: str, message: str = "") -> type[StorageError]:
    """Return the class for an error code of EC2 or STS."""
    said = message.lower()
    return next((error for one, text, error in CODES if fnmatchcase(code, one) and text in said), Unavailable)


def refused(call: str, answer: Mapping[str, Any]) -> StorageError:
    """Turn an error answer, as botocore parses it, into the error to raise. `call` is EC2's name for it."""
    told = answer.get("Error", {})
    code, message = told.get("Code", "no code"), _UNREADABLE.sub("", told.get("Message") or "no message")
    about = f"{code}, request {answer.get('ResponseMetadata', {}).get('RequestId', 'id unknown')}"
    error = kind(code, message)
    if error is PermissionDenied:
        action = found[1] if (found := _ACTION.search(message)) else f"ec2:{call}"
        return error(f"the credentials do not allow {action}: {message} ({about})")
    return error(f"{call}: {message} ({about})")


def failed(call: str, error: Exception) -> StorageError:
    """Turn a failure to get an answer (an exception of botocore) into the error to raise."""
    names = [base.__name__ for base in type(error).__mro__]
    found = next((FAILURES[name] for name in names if name in FAILURES), Unavailable)
    return found(f"{call}: {error} ({names[0]})")
