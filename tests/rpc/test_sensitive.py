"""Nothing sensitive is written: not to the log, not into a status message, whatever a backend does."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import requests
from csi_multi_testing.memory import MemoryBackend
from google.protobuf.message_factory import GetMessageClass

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import ResourceExhausted, Volume, VolumeRequest
from csi_multi.logs.handlers import ConsoleFormatter, JsonFormatter
from csi_multi.logs.redact import SENSITIVE, scrub, scrub_all
from csi_multi.rpc import sensitive

SECRET = "hunter2-correct-horse"
AWKWARD = [
    "short",
    "line one\nline two of it",
    'quote"d \\ back',
    "pä55wörd💾",
    "-----BEGIN\nMIIEvQIBADANBg\n-----END",
    "100%+/=",
]
SECRET_FIELDS = [
    (name, field.name)
    for name, method in requests.methods().items()
    for field in method.input_type.fields
    if field.GetOptions().Extensions[pb.csi_secret]
]


class Talkative(MemoryBackend):
    """Says everything it knows, in every way a careless backend might."""

    bug = False

    def create_volume(self, request: VolumeRequest) -> Volume:
        secrets, flags = dict(request.secrets), [one.mount.flags for one in request.capabilities if one.mount]
        log = logging.getLogger("csi_multi_talkative")
        log.warning("login with %s and %r, flags %s", secrets, secrets, flags)
        fields = {"secrets": secrets, "path": Path("/keys", *secrets.values()), "error": ValueError(secrets)}
        log.info("structured", extra={"fields": {**fields, **dict.fromkeys(secrets.values(), "as a key")}})
        try:
            raise OSError(f"denied: {json.dumps(secrets)}")
        except OSError as error:
            log.exception("failed")
            text = " ".join([f"{secrets!r} {flags!r} {json.dumps(secrets)}", *secrets.values()])
            raise RuntimeError(text) if self.bug else ResourceExhausted(text) from error


def test_every_request_with_secrets_is_known() -> None:
    assert len(SECRET_FIELDS) >= 20
    assert {field for _, field in SECRET_FIELDS} == {"secrets"}


@pytest.mark.parametrize(("rpc", "name"), SECRET_FIELDS)
def test_no_secret_of_any_request_is_logged_or_answered(
    rpc: str, name: str, serve: Any, make: Any, good: Any, stream: Any
) -> None:
    served = serve(make("fast"))
    call = getattr(served.client, rpc)
    try:
        answer = call(good(rpc, **{name: {"password": SECRET}}), timeout=10)
        text = str(list(answer) if hasattr(answer, "__next__") else answer)
    except Exception as error:
        text = str(error)

    assert f"{rpc} begins" in stream.getvalue()
    assert SECRET not in stream.getvalue()
    assert SECRET not in text


@pytest.mark.parametrize("bug", [False, True])
@pytest.mark.parametrize("secret", [SECRET, *AWKWARD])
def test_a_talkative_backend_gives_nothing_away(
    secret: str, bug: bool, serve: Any, make: Any, creation: Any, refused: Any, stream: Any
) -> None:
    served = serve(make("fast", Talkative))
    served.backend("fast").bug = bug

    refusal = refused(served.client.CreateVolume, creation(secrets={"password": secret}))

    written = stream.getvalue() + refusal.text
    decoded = " ".join(str(json.loads(line)) for line in stream.getvalue().splitlines())
    for form in {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
        assert form not in written
        assert form not in decoded
    for line in secret.splitlines():
        assert line not in written
    assert "***" in written


@pytest.mark.parametrize("bug", [False, True])
def test_mount_flags_are_sensitive_too(
    bug: bool, serve: Any, make: Any, creation: Any, refused: Any, stream: Any
) -> None:
    served = serve(make("fast", Talkative))
    served.backend("fast").bug = bug
    flags = pb.VolumeCapability.MountVolume(mount_flags=[f"password={SECRET}", "ro"])
    capability = pb.VolumeCapability(mount=flags, access_mode={"mode": "SINGLE_NODE_WRITER"})

    refusal = refused(served.client.CreateVolume, creation(volume_capabilities=[capability]))

    assert SECRET not in stream.getvalue() + refusal.text


def test_a_short_value_is_blotted_out_as_a_word_only() -> None:
    token = SENSITIVE.set(("ro", "x"))
    try:
        assert scrub("mount -o ro: error in x") == "mount -o ***: error in ***"
    finally:
        SENSITIVE.reset(token)


def test_what_has_no_secret_is_logged_as_it_is() -> None:
    fields = {"count": 5, "path": Path("/x"), "list": ["a", 1]}

    assert scrub_all(fields) == fields


def test_a_secret_hides_no_other_that_contains_it() -> None:
    message = pb.CreateVolumeRequest(secrets={"a": "hunter2-c", "b": SECRET})

    assert sensitive.values(message).index(SECRET) < sensitive.values(message).index("hunter2-c")


@pytest.mark.parametrize("rpc", sorted(requests.methods()))
def test_what_is_visible_of_a_request_has_no_sensitive_value(rpc: str) -> None:
    message = GetMessageClass(requests.methods()[rpc].input_type)()
    _fill(message, SECRET)

    assert SECRET not in str(sensitive.visible(message))


def _fill(message: Any, secret: str) -> None:
    """Put a secret into every sensitive place at any depth."""
    for field in message.DESCRIPTOR.fields:
        if field.GetOptions().Extensions[pb.csi_secret]:
            getattr(message, field.name)["key"] = secret
        elif field.name == "mount_flags":
            message.mount_flags.append(secret)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            value = getattr(message, field.name)
            _fill(value.add() if field.is_repeated else value, secret)


@pytest.mark.parametrize("formatter", [JsonFormatter(), ConsoleFormatter()])
def test_a_line_of_the_log_is_scrubbed_in_every_part(formatter: logging.Formatter) -> None:
    token = SENSITIVE.set((SECRET,))
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        trace = (type(error), error, error.__traceback__)
        record = logging.LogRecord("name", logging.ERROR, __file__, 1, "text %s", (SECRET,), trace)
        record.fields = {"deep": [{"in": SECRET}]}
        assert SECRET not in formatter.format(record)
    finally:
        SENSITIVE.reset(token)
