"""The errors for EC2's refusals and botocore's failures: the class decides what the orchestrator does next."""

from __future__ import annotations

import pytest
from botocore import exceptions
from csi_multi_ebs import errors
from csi_multi_ebs.errors import (
    DeviceNameTaken,
    IncorrectState,
    InstanceFull,
    ModificationCooldown,
    QuotaExceeded,
    TokenMismatch,
    VolumeAttached,
    ZoneFull,
    error_class,
    from_botocore,
    from_response,
)

from csi_multi.contract import (
    Busy,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    InvalidToken,
    NotFound,
    PermissionDenied,
    StorageError,
    Timeout,
    Unauthenticated,
    Unavailable,
)

TAKEN = "Invalid value '/dev/xvdba' for unixDevice. Attachment point /dev/xvdba is already in use"

SAMPLES = {
    "IdempotentParameterMismatch": TokenMismatch,
    "RequestLimitExceeded": Unavailable,
    "SnapshotCreationPerVolumeRateExceeded": Busy,
    "InsufficientVolumeCapacity": ZoneFull,
    "VolumeTypeNotAvailableInZone": ZoneFull,
    "InvalidZone.NotFound": ZoneFull,
    "AttachmentLimitExceeded": InstanceFull,
    "TagLimitExceeded": InvalidArgument,
    "VolumeLimitExceeded": QuotaExceeded,
    "MaxIOPSLimitExceeded": QuotaExceeded,
    "SnapshotLimitExceeded": QuotaExceeded,
    "ConcurrentSnapshotLimitExceeded": QuotaExceeded,
    "InvalidDevice.InUse": DeviceNameTaken,
    "VolumeInUse": VolumeAttached,
    "InvalidSnapshot.InUse": InUse,
    "VolumeModificationRateExceeded": ModificationCooldown,
    "IncorrectModificationState": ModificationCooldown,
    "IncorrectState": IncorrectState,
    "IncorrectInstanceState": IncorrectState,
    "InvalidVolume.ZoneMismatch": FailedPrecondition,
    "InvalidVolume.NotFound": NotFound,
    "InvalidSnapshot.NotFound": NotFound,
    "InvalidInstanceID.NotFound": NotFound,
    "InvalidAttachment.NotFound": NotFound,
    "InvalidVolumeID.Malformed": NotFound,
    "InvalidNextToken": InvalidToken,
    "InvalidParameterValue": InvalidArgument,
    "InvalidParameterCombination": InvalidArgument,
    "UnknownVolumeType": InvalidArgument,
    "UnsupportedOperation": InvalidArgument,
    "UnauthorizedOperation": PermissionDenied,
    "AccessDenied": PermissionDenied,
    "AuthFailure": Unauthenticated,
    "ExpiredToken": Unauthenticated,
    "ExpiredTokenException": Unauthenticated,
    "InvalidClientTokenId": Unauthenticated,
    "InternalError": Unavailable,
    "SomethingNobodyHasHeardOf": Unavailable,
}


def answer(code: str, message: str = "Something is wrong.", request: str = "4b1d") -> dict[str, dict[str, str]]:
    return {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"RequestId": request}}


@pytest.mark.parametrize(("code", "error"), SAMPLES.items(), ids=SAMPLES)
def test_a_code_is_the_error_that_says_what_to_do(code: str, error: type[StorageError]) -> None:
    assert type(from_response("CreateVolume", answer(code))) is error


def test_every_line_of_the_table_is_reached() -> None:
    for pattern, text, error in errors.CODES:
        assert error_class(pattern.replace("*", "Some"), text) is error, f"{pattern} is hidden by a line above"


def test_a_taken_device_name_is_told_by_its_message() -> None:
    assert error_class("InvalidParameterValue", TAKEN) is DeviceNameTaken


@pytest.mark.parametrize("code", ["UnsupportedOperation", "Unsupported", "UnknownVolumeType"])
def test_a_type_that_only_this_zone_lacks_leaves_other_zones_to_be_tried(code: str) -> None:
    assert error_class(code, "The volume type io2 is not supported in this Availability Zone") is ZoneFull


def test_a_message_names_call_code_and_request() -> None:
    error = from_response("DeleteVolume", answer("VolumeInUse", "vol-1 is in use"))

    assert str(error) == "DeleteVolume: vol-1 is in use (VolumeInUse, request 4b1d)"


def test_a_missing_right_is_named_and_the_part_nobody_can_read_is_left_out() -> None:
    message = (
        "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/csi/x is not authorized "
        "to perform: ec2:CreateTags on resource: arn:aws:ec2:r:1:volume/* Encoded authorization failure message: 4Ab_-x"
    )

    text = str(from_response("CreateVolume", answer("UnauthorizedOperation", message)))

    assert text.startswith("the credentials do not allow ec2:CreateTags: ")
    assert "4Ab_-x" not in text


def test_without_a_named_right_the_call_is_named() -> None:
    assert "do not allow ec2:CreateVolume:" in str(from_response("CreateVolume", answer("UnauthorizedOperation")))


def test_an_answer_without_anything_in_it_is_told_as_well() -> None:
    assert str(from_response("CreateVolume", {})) == "CreateVolume: no message (no code, request id unknown)"


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (exceptions.ReadTimeoutError(endpoint_url="http://ec2"), Timeout),
        (exceptions.ConnectTimeoutError(endpoint_url="http://ec2"), Unavailable),
        (exceptions.EndpointConnectionError(endpoint_url="http://ec2"), Unavailable),
        (exceptions.ConnectionClosedError(endpoint_url="http://ec2"), Unavailable),
        (exceptions.SSLError(endpoint_url="http://ec2", error="bad"), Unavailable),
        (exceptions.NoCredentialsError(), Unauthenticated),
        (exceptions.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), Unauthenticated),
        (exceptions.CredentialRetrievalError(provider="iam-role", error_msg="no"), Unauthenticated),
        (exceptions.ProfileNotFound(profile="other"), Unauthenticated),
        (exceptions.UnauthorizedSSOTokenError(), Unauthenticated),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_answer_is_told_apart_by_what_may_have_happened(trouble: Exception, error: type[StorageError]) -> None:
    told = from_botocore("AttachVolume", trouble)

    assert type(told) is error
    assert "AttachVolume: " in str(told)
    assert type(trouble).__name__ in str(told)
