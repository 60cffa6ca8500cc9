"""Backends that keep or tell secrets, and the checks that find it."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS, attach, expand, secrecy, snapshots
from csi_multi_testing.context import in_process
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.secret_watch import MARKED, marked, revealed
from csi_multi_testing.storage import Storage

from csi_multi.contract import (
    NO_SECRETS,
    AttachRequest,
    Backend,
    Device,
    ExpandRequest,
    Expansion,
    NotFound,
    OpenRequest,
    ResourceExhausted,
    Snapshot,
    SnapshotRequest,
    StorageError,
    Strings,
    Unauthenticated,
    Unavailable,
    Volume,
    VolumeRequest,
)

from . import file_backend
from .file_backend import FileBackend, over_files
from .loop_devices import Looped, looped

WORD = "correct horse"


class Keeping(MemoryBackend):
    """Keeps the secrets for later, where anybody can read them."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        context = {**request.stamp.context, **request.secrets}
        return super().create_volume(replace(request, stamp=replace(request.stamp, context=context)))


class KeepingInAFile(FileBackend):
    """Writes the secrets beside the record, where no answer shows them."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        (self.root / file_backend.VOLUMES / made.handle / "login").write_text(repr(dict(request.secrets)))
        return made


class KeepingQuietly(MemoryBackend):
    """Does so behind its answer."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        made = super().create_volume(request)
        stamp = replace(made.stamp, context={**made.stamp.context, **request.secrets})
        self.storage.volumes[made.handle] = replace(made, stamp=stamp)
        return made


class Locked(MemoryBackend):
    """Wants the right word, and says which one was wrong."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.secrets.get("word") != WORD:
            raise Unauthenticated(f"the secrets {dict(request.secrets)} are wrong")
        return super().create_volume(request)


class Discreet(Locked):
    """Wants the right word, and does not say more, which is allowed."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except Unauthenticated:
            raise Unauthenticated("secret 'word' is wrong") from None


class Telling(MemoryBackend):
    """Says with what it was asked when it fails."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except ResourceExhausted as error:
            raise ResourceExhausted(f"{error}; asked with {dict(request.secrets)}") from None


class TellingAtTheEnd(MemoryBackend):
    def delete_volume(self, handle: str, secrets: Strings) -> None:
        try:
            super().delete_volume(handle, secrets)
        except NotFound as error:
            raise NotFound(f"{error}; asked with {dict(secrets)}") from None


class TellingARefusal(MemoryBackend):
    """Says of an expansion that is refused with what it was asked: asdict knows of no field that repr leaves out."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        try:
            return super().expand_volume(request)
        except StorageError as error:
            raise type(error)(f"{error}; asked: {asdict(request)}") from None


class Logging(MemoryBackend):
    """Logs with what it was asked."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        logging.getLogger("kit.broken").info("asked with %s", dict(request.secrets))
        return super().create_snapshot(request)


class Publishing(MemoryBackend):
    """Hands the secrets of an attachment on to the node."""

    def attach(self, request: AttachRequest) -> Strings:
        return {**super().attach(request), "login": request.secrets["kit-secret"]}


class KeepingOfASnapshot(FileBackend):
    """Writes the secrets of a snapshot to the storage."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        (self.root / file_backend.SNAPSHOTS / made.handle / "login").write_text(repr(dict(request.secrets)))
        return made


class Arguing(MemoryBackend):
    """Hands secrets to a command as arguments."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        self.setting.host.run("true", *(f"--{key}={value}" for key, value in request.secrets.items()))
        return super().create_volume(request)


class TellingOnTheNode(FileBackend):
    """Says with what it was asked when a note fails."""

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        try:
            super().formatted(handle)
        except StorageError as error:
            raise Unavailable(f"{error}; asked with {dict(secrets)}") from None


class ArguingOnTheNode(FileBackend):
    """Hands the secrets of the node to a command as arguments."""

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.setting.host.run("true", *(f"--{key}={value}" for key, value in secrets.items()))
        super().refresh_device(handle)


class DemandingToClose(FileBackend):
    """Wants the right word also where no request brings it."""

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        demand(secrets)
        super().close_device(handle)


class Remembering(FileBackend):
    """Finds the device with the word of the request that opened it, as long as its process lives."""

    word = ""

    def open_device(self, request: OpenRequest) -> Device:
        self.word = request.secrets.get("word", "")
        return super().open_device(request)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        demand({"word": self.word})
        return super().find_device(handle)


class DemandingForNotes(Looped):
    """Wants the right word where every request that leads there brings it. Correct."""

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        demand(secrets)
        super().formatting(handle)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        demand(secrets)
        super().formatted(handle)

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        demand(secrets)
        return super().has_data(handle)

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        demand(secrets)
        super().refresh_device(handle)


def demand(secrets: Strings) -> None:
    if secrets.get("word") != WORD:
        raise Unauthenticated("secret 'word' is wrong or missing")


def with_word(kind: type[FileBackend]) -> Callable[[], Storage]:
    return lambda: file_backend.storage(kind, secrets={"word": WORD})


def telling_the_right_word() -> Storage:
    return memory.storage(Arguing, secrets={"word": WORD})


def locked() -> Storage:
    return memory.storage(Locked, secrets={"word": WORD})


BROKEN = [
    (secrecy.a_secret_is_not_stored_with_the_volume, over_files(KeepingInAFile), "login, after create_volume,"),
    (secrecy.a_secret_is_not_stored_with_the_volume, Keeping, "create_volume: the answer contains the value of secret"),
    (
        secrecy.a_secret_is_not_stored_with_the_volume,
        KeepingQuietly,
        "get_volume: the answer contains the value of secret",
    ),
    (secrecy.a_secret_is_not_in_the_arguments_of_a_command, Arguing, "a call to 'true' contains the value of secret"),
    (
        secrecy.a_secret_is_not_in_the_arguments_of_a_command,
        telling_the_right_word,
        "contains the value of secret 'word'",
    ),
    (secrecy.a_secret_is_not_in_an_error_message, Telling, "too large: the message of ResourceExhausted contains"),
    (
        secrecy.a_secret_is_not_in_an_error_message,
        TellingAtTheEnd,
        "of an unknown volume: the message of NotFound contains",
    ),
    (secrecy.a_secret_is_not_in_an_error_message, locked, "wrong secrets: the message of Unauthenticated contains"),
    (
        secrecy.a_secret_is_not_revealed_by_the_methods_of_the_node,
        over_files(TellingOnTheNode),
        "formatted: the message of Unavailable contains",
    ),
    (
        secrecy.a_secret_is_not_revealed_by_the_methods_of_the_node,
        over_files(ArguingOnTheNode),
        "refresh_device: a call to 'true' contains",
    ),
    (secrecy.a_device_is_found_and_closed_without_secrets, with_word(DemandingToClose), "close_device without secrets"),
    (secrecy.a_device_is_found_and_closed_without_secrets, with_word(Remembering), "find_device without secrets"),
]
REVEALED_ELSEWHERE = [  # in checks of other subjects, each of which looks for the secrets of its requests
    (expand.a_deleted_volume_cannot_be_expanded, TellingARefusal, "expand_volume: the message of NotFound contains"),
    (snapshots.a_snapshot_has_its_creation_time, Logging, "a log line of kit.broken contains the value of secret"),
    (attach.a_repeated_attachment_returns_the_same_publish_context, Publishing, "attach: the answer contains"),
    (snapshots.a_snapshot_has_its_creation_time, over_files(KeepingOfASnapshot), "login contains the value of secret"),
]
OF_THE_NODE = [check for check, *_ in BROKEN if "node" in check.__name__ or "device" in check.__name__]


@pytest.mark.parametrize(("check", "backend", "words"), [*BROKEN, *REVEALED_ELSEWHERE])
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


GROUPS = ("blanks", "devices", "node_crashes", "records", "secrecy")
OTHERS = (
    "an expansion keeps what is written meanwhile",
    "an open device is not taken for closed while the storage is away",
)
ON_THE_NODE = [name for name, one in CHECKS.items() if one.group in GROUPS or name in OTHERS]


@pytest.mark.root
@pytest.mark.parametrize("name", ON_THE_NODE)
def test_secrets_may_be_demanded_for_every_method_that_always_gets_them(name: str) -> None:
    outcome = run(CHECKS[name], in_process(replace(looped(DemandingForNotes)(), secrets={"word": WORD})))

    assert outcome.state is not CheckState.FAILED, outcome.text


CREATION = sorted({check for check, *_ in BROKEN} - set(OF_THE_NODE), key=lambda one: one.__name__)


@pytest.mark.parametrize("check", CREATION, ids=lambda check: check.__name__)
def test_secrets_may_be_demanded(judged: Any, check: Any) -> None:
    outcome = judged(check, lambda: memory.storage(Discreet, secrets={"word": WORD}))

    assert outcome.state.value == "passed", outcome.text


def test_a_key_in_several_lines_is_found_as_python_and_json_write_it() -> None:
    key = MARKED["kit-key"]

    for text in (key, repr({"key": key}), json.dumps({"key": key}), base64.b64encode(key.encode()).decode()):
        assert revealed(f"asked with {text}", {"kit-key": key}) == "kit-key"
    assert revealed("asked with a key", {"kit-key": key}) == ""


def test_a_class_that_is_watched_is_still_that_of_the_author() -> None:
    storage = marked(memory.storage())
    backend = storage.backend()

    assert isinstance(backend, MemoryBackend)
    assert type(backend).__qualname__ == "MemoryBackend"
    assert type(backend).formatting is Backend.formatting
    assert marked(storage) is storage
