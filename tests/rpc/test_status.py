"""Which code the caller sees for which failure; the code decides what the orchestrator does next."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import Backend, ExpandRequest, Expansion, ModifyRequest, Volume, VolumeRequest, errors
from csi_multi.rpc.status import CODES, code_of

# external-provisioner keeps a volume in mind after these; every other code is final.
NOT_FINAL = {
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
}
TREE = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.StorageError)]


class Failing(MemoryBackend):
    """Raises what a test gives it."""

    error: BaseException = errors.StorageError()

    def create_volume(self, request: VolumeRequest) -> Volume:
        raise self.error


class Plain(Backend):
    """Has no feature at all."""

    contract = (1, 0)

    def _none(self, *_: Any) -> Any:
        raise errors.NotFound("there are no volumes here")

    create_volume = find_volume = get_volume = delete_volume = open_device = find_device = close_device = _none


class Refusing(MemoryBackend):
    """Raises what a test gives it when a volume that exists is to be changed."""

    error: BaseException = errors.StorageError()

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        raise self.error

    def modify_volume(self, request: ModifyRequest) -> None:
        raise self.error


@pytest.fixture
def changing(serve: Any, make: Any, creation: Any, refused: Any) -> Any:
    """changing("ControllerExpandVolume", error) is how the RPC ends when the backend raises the error."""
    served = serve(make("fast", Refusing))
    volume = served.client.CreateVolume(creation()).volume.volume_id

    def call(rpc: str, error: BaseException) -> Any:
        served.backend("fast").error = error
        fields: dict[str, Any] = {"capacity_range": {"required_bytes": 1 << 40}}
        if rpc == "ControllerModifyVolume":
            fields = {"mutable_parameters": {"iops": "5"}}
        return refused(getattr(served.client, rpc), volume_id=volume, **fields)

    return call


@pytest.fixture
def fail(serve: Any, make: Any, creation: Any, refused: Any) -> Any:
    served = serve(make("fast", Failing))

    def call(error: BaseException, **fields: Any) -> Any:
        served.backend("fast").error = error
        return refused(served.client.CreateVolume, creation(**fields))

    return call


def test_every_class_of_the_tree_has_its_code() -> None:
    assert set(CODES) == set(TREE)


def test_only_what_may_still_be_running_is_not_final() -> None:
    unsettled = {cls for cls, code in CODES.items() if code in NOT_FINAL}

    assert unsettled == {
        errors.StorageError,
        errors.Busy,
        errors.InvalidToken,
        errors.Unavailable,
        errors.Timeout,
    }


@pytest.mark.parametrize("cls", [one for one in TREE if one is not errors.AlreadyExists], ids=lambda cls: cls.__name__)
def test_a_backends_error_reaches_the_caller_with_its_code_and_text(cls: Any, fail: Any) -> None:
    refusal = fail(cls("the pool said no"))

    assert (refusal.code, refusal.text) == (code_of(cls(), "CreateVolume"), "the pool said no")


@pytest.mark.parametrize("cls", TREE, ids=lambda cls: cls.__name__)
def test_a_new_subclass_has_the_code_of_its_parent(cls: Any) -> None:
    new = type("New", (cls,), {})

    assert code_of(new()) is CODES[cls]


def test_an_error_without_a_text_still_says_something(fail: Any) -> None:
    assert fail(errors.ResourceExhausted()).text == "ResourceExhausted"


@pytest.mark.parametrize("error", [ValueError("rm -rf /srv"), KeyError("k"), RuntimeError(), AssertionError("x")])
def test_any_other_exception_is_a_bug_whose_details_stay_in_the_log(error: Any, fail: Any, stream: Any) -> None:
    refusal = fail(error)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    traces = [line for line in lines if "traceback" in line]

    assert refusal.code is grpc.StatusCode.UNAVAILABLE  # not final: nobody knows what was made
    assert "rm -rf" not in refusal.text
    assert "Traceback" not in refusal.text
    assert len(traces) == 1
    assert type(error).__name__ in traces[0]["traceback"]
    assert traces[0]["error_id"] in refusal.text


@pytest.mark.parametrize("error", [SystemExit(3), BaseException("odd")])
def test_a_backend_that_wants_to_end_the_process_is_a_bug(error: BaseException, fail: Any) -> None:
    refusal = fail(error)

    assert (refusal.code, "internal error" in refusal.text) == (grpc.StatusCode.UNAVAILABLE, True)


@pytest.mark.parametrize("filler", ["x", "é", "💾", "\n", "%"])
def test_a_text_too_long_for_the_wire_does_not_change_the_code(filler: str, fail: Any) -> None:
    refusal = fail(errors.ResourceExhausted("the beginning " + filler * 20_000))

    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.text.startswith("the beginning")


def test_a_long_key_of_a_parameter_does_not_change_the_code(fail: Any) -> None:
    refusal = fail(errors.Busy(), parameters={"💾" * 1000: "x"})

    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ResourceExhausted("pool p is full"), grpc.StatusCode.OUT_OF_RANGE),
        (errors.OutOfRange("too large"), grpc.StatusCode.OUT_OF_RANGE),
        (errors.FailedPrecondition("changed an hour ago"), grpc.StatusCode.OUT_OF_RANGE),
        (errors.WrongNode("on another node"), grpc.StatusCode.OUT_OF_RANGE),
        (errors.InUse("published"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.NotFound("no such volume"), grpc.StatusCode.NOT_FOUND),
        (errors.Busy("being copied"), grpc.StatusCode.ABORTED),
        (errors.Unavailable("no answer"), grpc.StatusCode.UNAVAILABLE),
        (errors.Timeout("no answer in time"), grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_expansion_that_the_storage_refuses_lets_the_claim_take_its_size_back(
    error: errors.StorageError, code: grpc.StatusCode, changing: Any
) -> None:
    refusal = changing("ControllerExpandVolume", error)

    assert (refusal.code, refusal.text) == (code, str(error))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ResourceExhausted("quota of iops"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.OutOfRange("at most 16000"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.InvalidArgument("no such type"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.FailedPrecondition("changed an hour ago"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.Unavailable("no answer"), grpc.StatusCode.UNAVAILABLE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_class_that_the_storage_refuses_lets_the_claim_leave_it(
    error: errors.StorageError, code: grpc.StatusCode, changing: Any
) -> None:
    refusal = changing("ControllerModifyVolume", error)

    assert (refusal.code, refusal.text) == (code, str(error))


@pytest.mark.parametrize(
    ("rpc", "fields"),
    [
        ("ControllerModifyVolume", {"volume_id": "plain/v", "mutable_parameters": {"iops": "5"}}),
        ("ControllerExpandVolume", {"volume_id": "plain/v", "capacity_range": {"required_bytes": 1 << 30}}),
        ("CreateSnapshot", {"name": "s", "source_volume_id": "plain/v"}),
        ("CreateVolumeGroupSnapshot", {"name": "g", "source_volume_ids": ["plain/v"]}),
        ("ControllerGetVolumeHealth", {"volume_id": "plain/v"}),
    ],
)
def test_what_another_backend_of_the_driver_can_do_is_an_invalid_argument(
    rpc: str, fields: Any, serve: Any, make: Any, refused: Any
) -> None:
    """The driver advertises the RPC, so UNIMPLEMENTED would be untrue, and a claim could not leave its class."""
    served = serve(make("fast"), make("plain", Plain))

    refusal = refused(getattr(served.client, rpc), **fields)

    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"does not support {rpc}" in refusal.text


@pytest.mark.parametrize("error", [errors.PermissionDenied("no right"), errors.Unauthenticated("an old password")])
def test_a_creation_whose_credentials_are_refused_is_not_forgotten_for_an_earlier_try_may_have_made_it(
    fail: Any, error: errors.StorageError
) -> None:
    refusal = fail(error)

    assert refusal.code in NOT_FINAL
    assert refusal.text == str(error)


@pytest.mark.parametrize("rpc", ["CreateSnapshot", "CreateVolumeGroupSnapshot", "NodeStageVolume", "NodePublishVolume"])
@pytest.mark.parametrize("error", [errors.PermissionDenied(), errors.Unauthenticated()])
def test_no_rpc_that_makes_something_ends_for_good_when_credentials_are_refused(
    rpc: str, error: errors.StorageError
) -> None:
    assert code_of(error, rpc) in NOT_FINAL
