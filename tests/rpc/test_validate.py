"""The rules that every CSI message obeys, held against every RPC by its descriptor."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from csi_multi_testing import requests
from google.protobuf.descriptor import FieldDescriptor

from csi_multi._proto import csi_pb2 as pb
from csi_multi.rpc.rules import RULES
from csi_multi.rpc.validate import PATH_FIELDS

Code = grpc.StatusCode
METHODS = requests.methods()
SECRETS = [name for name, method in METHODS.items() if "secrets" in method.input_type.fields_by_name]
NOT_PUBLIC = {"volume_path", "volume_publish_path"}  # csi-sanity sends relative ones


def fields(wanted: Any) -> list[tuple[str, str]]:
    """Return (RPC, field) for all top-level request fields that are wanted."""
    return [(rpc, field.name) for rpc, method in METHODS.items() for field in method.input_type.fields if wanted(field)]


def is_text(field: Any) -> bool:
    return bool(field.type == FieldDescriptor.TYPE_STRING)


def is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_number(field: Any) -> bool:
    return field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64)


def of(*types: str) -> Any:
    return lambda field: field.message_type is not None and field.message_type.name in types


TEXTS = fields(lambda field: is_text(field) and field.name not in PATH_FIELDS)


@pytest.fixture
def refusal(everything: Any, good: Any, refused: Any) -> Any:
    """refusal("DeleteVolume", volume_id="") is how that otherwise good request is refused."""
    return lambda rpc, **fields: refused(getattr(everything.client, rpc), good(rpc, **fields))


def test_there_are_36_rpcs_and_each_has_a_rule() -> None:
    assert len(METHODS) == 36
    assert set(RULES) == set(METHODS)


@pytest.mark.parametrize("rpc", METHODS)
def test_a_good_request_gets_past_validation(rpc: str, everything: Any, good: Any, code_of: Any) -> None:
    expected = {Code.OK, Code.NOT_FOUND}
    if rpc == "NodeStageVolume":
        expected = {Code.FAILED_PRECONDITION}  # the orchestrator has not made the staging directory

    assert code_of(everything, good(rpc), rpc) in expected


MANDATORY = [(rpc, name) for rpc, rule in RULES.items() for name in rule.required]


@pytest.mark.parametrize(("rpc", "name"), MANDATORY)
def test_a_required_field_is_named_when_it_is_missing(
    rpc: str, name: str, everything: Any, good: Any, refused: Any
) -> None:
    message = good(rpc)
    message.ClearField(name)

    refusal = refused(getattr(everything.client, rpc), message)

    assert (refusal.code, refusal.text) == (Code.INVALID_ARGUMENT, f"{name} is required")


@pytest.mark.parametrize(("rpc", "name"), TEXTS)
def test_a_text_is_at_most_128_bytes(
    rpc: str, name: str, everything: Any, good: Any, refused: Any, code_of: Any
) -> None:
    repeated = METHODS[rpc].input_type.fields_by_name[name].is_repeated
    limit = 256 if name == "node_id" else 128
    for text in ("x" * (limit + 1), "é" * (limit // 2) + "x", "💾" * (limit // 4) + "x"):
        refusal = refused(getattr(everything.client, rpc), good(rpc, **{name: [text] if repeated else text}))
        assert refusal.code is Code.INVALID_ARGUMENT
        assert f"{name} has {limit + 1} bytes; at most {limit} are allowed" in refusal.text
    fitting = "é" * (limit // 2)
    code = code_of(everything, good(rpc, **{name: [fitting] if repeated else fitting}), rpc)
    assert code is not Code.INVALID_ARGUMENT or name == "snapshot_ids"


@pytest.mark.parametrize(("rpc", "name"), fields(is_map))
def test_a_map_is_at_most_4_kib(rpc: str, name: str, refusal: Any) -> None:
    pairs = {f"key-{number}": "é" * 64 for number in range(40)}

    found = refusal(rpc, **{name: pairs})

    assert found.code is Code.INVALID_ARGUMENT
    assert f"{name} has " in found.text
    assert "4096 are allowed" in found.text


@pytest.mark.parametrize(("rpc", "name"), fields(is_number))
def test_a_number_is_never_negative(rpc: str, name: str, refusal: Any) -> None:
    found = refusal(rpc, **{name: -1})

    assert found.code is (Code.OUT_OF_RANGE if name == "starting_offset" else Code.INVALID_ARGUMENT)
    assert f"{name} is -1" in found.text


@pytest.mark.parametrize("rpc", ["CreateVolume", "CreateSnapshot", "CreateVolumeGroupSnapshot"])
def test_a_name_has_no_control_characters_but_tab_and_line_breaks(
    rpc: str, everything: Any, good: Any, refused: Any, code_of: Any
) -> None:
    for number in (*range(0x20), *range(0x7F, 0xA0)):
        message = good(rpc, name=f"a{chr(number)}b")
        if chr(number) in "\t\n\r":
            assert code_of(everything, message, rpc) is not Code.INVALID_ARGUMENT
        else:
            refusal = refused(getattr(everything.client, rpc), message)
            assert refusal.code is Code.INVALID_ARGUMENT
            assert f"U+{number:04X}" in refusal.text


@pytest.mark.parametrize("rpc", SECRETS)
@pytest.mark.parametrize("key", ["a b", "a/b", "é", "", "a\n", "a:b"])
def test_a_key_of_a_secret_is_plain(rpc: str, key: str, refusal: Any) -> None:
    found = refusal(rpc, secrets={key: "value"})

    assert found.code is Code.INVALID_ARGUMENT
    assert "secrets" in found.text


@pytest.mark.parametrize("rpc", SECRETS)
def test_a_secret_that_is_given_as_a_key_is_shown_nowhere(rpc: str, refusal: Any, stream: Any) -> None:
    found = refusal(rpc, secrets={"hunter2 is my password": "", "other": "x"})

    assert found.code is Code.INVALID_ARGUMENT
    assert "hunter2" not in found.text + stream.getvalue()


WRITER = {"mode": "SINGLE_NODE_WRITER"}
BAD_CAPABILITIES = [
    ({}, "access_type is required"),
    ({"access_mode": WRITER}, "access_type is required"),
    ({"mount": {}}, "access_mode is required"),
    ({"block": {}}, "access_mode is required"),
    ({"mount": {}, "access_mode": {}}, "access_mode is required"),
    ({"mount": {}, "access_mode": {"mode": "UNKNOWN"}}, "access_mode is required"),
    ({"mount": {"fs_type": "x" * 129}, "access_mode": WRITER}, "fs_type has 129"),
    ({"mount": {"volume_mount_group": "x" * 129}, "access_mode": WRITER}, "volume_mount_group has 129"),
    ({"mount": {"mount_flags": ["x" * 4096, "y"]}, "access_mode": WRITER}, "mount_flags has 4097"),
    ({"mount": {"mount_flags": ["a\x00b"]}, "access_mode": WRITER}, "NUL or a line break"),
    ({"mount": {"mount_flags": ["a\nb"]}, "access_mode": WRITER}, "NUL or a line break"),
]


@pytest.mark.parametrize(("rpc", "name"), fields(of("VolumeCapability")))
@pytest.mark.parametrize(("bad", "words"), BAD_CAPABILITIES)
def test_a_capability_is_complete(rpc: str, name: str, bad: Any, words: str, refusal: Any) -> None:
    many = METHODS[rpc].input_type.fields_by_name[name].is_repeated

    found = refusal(rpc, **{name: [bad] if many else bad})

    assert found.code is Code.INVALID_ARGUMENT
    assert words in found.text


@pytest.mark.parametrize(("rpc", "name"), fields(of("VolumeCapability")))
@pytest.mark.parametrize("mode", [8, 99, -1])
def test_an_access_mode_from_the_future_is_not_understood(
    rpc: str, name: str, mode: int, everything: Any, good: Any, refused: Any, code_of: Any
) -> None:
    many = METHODS[rpc].input_type.fields_by_name[name].is_repeated
    unknown = pb.VolumeCapability(mount={}, access_mode={"mode": mode})
    client = everything.client
    if rpc == "ValidateVolumeCapabilities":
        mount = pb.VolumeCapability(mount={}, access_mode=WRITER)
        volume = client.CreateVolume(name="seen", parameters={"backend": "fast"}, volume_capabilities=[mount]).volume
        answer = client.ValidateVolumeCapabilities(volume_id=volume.volume_id, volume_capabilities=[unknown])
        assert not answer.HasField("confirmed")
        assert str(mode) in answer.message
    elif rpc in ("CreateVolume", "GetCapacity"):
        assert (
            refused(getattr(client, rpc), good(rpc, **{name: [unknown] if many else unknown})).code
            is Code.INVALID_ARGUMENT
        )
    else:
        assert code_of(everything, good(rpc, **{name: unknown}), rpc) in (Code.INVALID_ARGUMENT, Code.NOT_FOUND)


@pytest.mark.parametrize(("rpc", "name"), fields(of("CapacityRange")))
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({}, "must be set"),
        ({"required_bytes": -1}, "required_bytes is -1"),
        ({"limit_bytes": -1}, "limit_bytes is -1"),
        ({"required_bytes": 5, "limit_bytes": 4}, "below required_bytes"),
    ],
)
def test_a_capacity_range_makes_sense(rpc: str, name: str, bad: Any, words: str, refusal: Any) -> None:
    found = refusal(rpc, **{name: bad})

    assert found.code is Code.INVALID_ARGUMENT
    assert words in found.text


@pytest.mark.parametrize("bad", [{}, {"snapshot": {}}, {"volume": {}}])
def test_a_content_source_names_something(bad: Any, refusal: Any) -> None:
    found = refusal("CreateVolume", volume_content_source=bad)

    assert (found.code, "is required" in found.text) == (Code.INVALID_ARGUMENT, True)


PREFIX = "multi.csi.example.com"
BAD_SEGMENTS = [
    {"": "a"}, {"a b": "a"}, {"-a": "a"}, {"a-": "a"}, {"é": "a"}, {f"{PREFIX}/": "a"}, {"/zone": "a"}, {"A/zone": "a"},
    {"a..b/zone": "a"}, {"a/b/zone": "a"}, {"z" * 64: "a"}, {"p" * 64 + "/zone": "a"}, {"zone": ""}, {"zone": "-a"},
    {"zone": "a b"}, {"zone": "a" * 64}, {"zone": "é"}, {"zone": "a", "ZONE": "b"}, {"zone": "a\n"}, {"zone\n": "a"},
]  # fmt: skip


@pytest.mark.parametrize("segments", BAD_SEGMENTS)
def test_topology_is_spelled_right(segments: dict[str, str], refusal: Any) -> None:
    for rpc, fields in (
        ("CreateVolume", {"accessibility_requirements": {"requisite": [{"segments": segments}]}}),
        ("CreateVolume", {"accessibility_requirements": {"preferred": [{"segments": segments}]}}),
        ("CreateSnapshot", {"accessibility_requirements": {"requisite": [{"segments": segments}]}}),
        ("GetCapacity", {"accessible_topology": {"segments": segments}}),
    ):
        found = refusal(rpc, **fields)
        assert found.code is Code.INVALID_ARGUMENT
        assert "topology" in found.text or "differs" in found.text


def test_a_topology_requirement_holds_something(refusal: Any) -> None:
    assert "requisite or preferred" in refusal("CreateVolume", accessibility_requirements={}).text


@pytest.mark.parametrize(("rpc", "name"), fields(lambda field: field.name in PATH_FIELDS))
@pytest.mark.parametrize(
    "path", ["relative", "./x", "/a/../b", "/..", "../a", "/a\x00b", "/" + "x" * 256, "/x" * 2048 + "y"]
)
def test_a_path_is_absolute_and_plain(rpc: str, name: str, path: str, everything: Any, good: Any, code_of: Any) -> None:
    code = code_of(everything, good(rpc, **{name: path}), rpc)

    loose = name in NOT_PUBLIC and ".." not in path and not path.startswith("/")
    assert code is (Code.NOT_FOUND if loose else Code.INVALID_ARGUMENT)


@pytest.mark.parametrize(("rpc", "name"), fields(lambda field: field.name in PATH_FIELDS))
def test_a_path_may_be_as_long_as_the_system_takes(
    rpc: str, name: str, everything: Any, good: Any, code_of: Any
) -> None:
    code = code_of(everything, good(rpc, **{name: "/" + "é" * 120 + "/x" * 1900}), rpc)

    assert code in (Code.OK, Code.NOT_FOUND, Code.FAILED_PRECONDITION)
