"""Which code the caller sees for which failure; the code decides what the orchestrator does next."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import Volume, VolumeRequest, errors
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

    assert (refusal.code, refusal.text) == (CODES[cls], "the pool said no")


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
