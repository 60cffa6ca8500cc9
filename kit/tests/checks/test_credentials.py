"""Backends that read a file with credentials and tell what is in it, and the checks that find it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import credentials
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import Storage

from csi_multi.contract import FailedPrecondition, NotFound, Strings, Unauthenticated, Volume, VolumeRequest

RIGHT = "kit:the right word\n"
FILES: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


class Careful(MemoryBackend):
    """Reads a file, and says nothing of what is in it. Correct."""

    file: ClassVar[Path]

    def get_volume(self, handle: str) -> Volume:
        self.log_in()
        return super().get_volume(handle)

    def log_in(self) -> None:
        try:
            if self.read() != RIGHT:
                raise Unauthenticated("the credentials are not accepted")
        except UnicodeDecodeError:
            raise FailedPrecondition("the credentials are no text") from None

    def read(self) -> str:
        return self.file.read_text()


class Quoting(Careful):
    """Shows the file where it has another form than the one that is expected."""

    def read(self) -> str:
        found = super().read()
        if ":" not in found:
            raise FailedPrecondition(f"the credentials must be USER:PASSWORD, and are {found!r}")
        return found


class Decoding(Careful):
    """Lets the error of the decoder through, which has the bytes."""

    def log_in(self) -> None:
        self.read()


class Logging(Careful):
    """Logs what it does not understand."""

    def read(self) -> str:
        found = super().read()
        if found != RIGHT:
            logging.getLogger("kit.broken").warning("unknown line %s", found)
        return found


class Absent(Careful):
    """Takes what it may not see for what is not there."""

    def get_volume(self, handle: str) -> Volume:
        try:
            return super().get_volume(handle)
        except Unauthenticated:
            raise NotFound(f"volume {handle!r} does not exist") from None


def reading(kind: type[Careful]) -> Callable[[], Storage]:
    def storage() -> Storage:
        FILES.append(tempfile.TemporaryDirectory(prefix="kit-"))
        file = Path(FILES[-1].name, "password")
        file.write_text(RIGHT)
        return memory.storage(type(kind.__name__, (kind,), {"file": file}), credentials=(file,))

    return storage


WORDS = {"one": "kit:the first word\n", "other": "kit:the second word\n"}


class Renewing(Careful):
    """Reads the file when the storage refuses what was in it. Correct."""

    accepted: ClassVar[list[str]]  # by the storage, in turn
    found = ""

    def log_in(self) -> None:
        if self.found != self.accepted[-1]:
            self.found = self.read()
        if self.found != self.accepted[-1]:
            raise Unauthenticated("the credentials are not accepted")


class ReadsOnce(Renewing):
    """Keeps what it has read for as long as the process lives."""

    def read(self) -> str:
        return self.found or super().read()


class ReadsOnceForAll(Renewing):
    """Keeps it for the next objects, too, as a module does."""

    kept: ClassVar[list[str]]

    def log_in(self) -> None:
        if not self.kept:
            self.kept.append(self.read())
        if self.kept[0] != self.accepted[-1]:
            raise Unauthenticated("the credentials are not accepted")


def rotated(kind: type[Renewing]) -> Callable[[], Storage]:
    """Return a storage that accepts one word at a time, which a file has."""

    def storage() -> Storage:
        FILES.append(tempfile.TemporaryDirectory(prefix="kit-"))
        file, accepted = Path(FILES[-1].name, "password"), list[str]()

        def accept(word: str) -> None:
            accepted.append(WORDS[word])
            file.write_text(WORDS[word])

        @contextmanager
        def rotate() -> Iterator[None]:
            accept("other")
            yield
            accept("one")

        accept("one")
        own = {"file": file, "accepted": accepted, "kept": []}
        return memory.storage(type(kind.__name__, (kind,), own), rotate=rotate)

    return storage


class Asking(MemoryBackend):
    """Creates a volume with the secret of its request. Correct."""

    accepted: ClassVar[list[str]]

    def create_volume(self, request: VolumeRequest) -> Volume:
        self.log_in(request.secrets)
        return super().create_volume(request)

    def log_in(self, secrets: Strings) -> None:
        if secrets.get("word") != self.accepted[-1]:
            raise Unauthenticated("the secret is not accepted")


class AsksOnce(Asking):
    """Keeps the session of the first request."""

    session: str | None = None

    def log_in(self, secrets: Strings) -> None:
        if self.session is None:
            self.session = secrets["word"]
        super().log_in({"word": self.session})


class KeepsSessions(Asking):
    """Asks the storage again only if it refuses the last session, whoever has it."""

    session = ""

    def log_in(self, secrets: Strings) -> None:
        if self.session != self.accepted[-1]:
            super().log_in(secrets)
            self.session = secrets["word"]


def asked(kind: type[Asking]) -> Callable[[], Storage]:
    """Return a storage that accepts one secret of requests at a time."""

    def storage() -> Storage:
        accepted = [WORDS["one"]]

        @contextmanager
        def rotate() -> Iterator[Mapping[str, str]]:
            accepted.append(WORDS["other"])
            yield {"word": WORDS["other"]}
            accepted.append(WORDS["one"])

        made = type(kind.__name__, (kind,), {"accepted": accepted})
        return memory.storage(made, rotate=rotate, secrets={"word": WORDS["one"]})

    return storage


BROKEN = [
    (
        credentials.a_process_uses_the_credential_that_the_storage_accepts_now,
        rotated(ReadsOnce),
        "after the credential of the storage was changed: raised Unauthenticated",
    ),
    (
        credentials.a_process_uses_the_credential_that_the_storage_accepts_now,
        rotated(ReadsOnceForAll),
        "after the credential of the storage was changed: raised Unauthenticated",
    ),
    (
        credentials.a_process_uses_the_credential_that_the_storage_accepts_now,
        asked(AsksOnce),
        "create_volume after the credential of the storage was changed: raised Unauthenticated",
    ),
    (
        credentials.a_request_is_served_with_its_own_secrets,
        asked(AsksOnce),
        "create_volume with secrets that are new: raised Unauthenticated",
    ),
    (
        credentials.a_request_is_served_with_its_own_secrets,
        asked(KeepsSessions),
        "create_volume with the secrets from before, which the storage refuses: succeeded",
    ),
    (
        credentials.the_content_of_a_credentials_file_is_not_in_an_error,
        reading(Quoting),
        "get_volume, where 'password' of Storage.credentials has '***': the message of the error contains",
    ),
    (
        credentials.the_content_of_a_credentials_file_is_not_in_an_error,
        reading(Decoding),
        "of Storage.credentials has 'ÿ***': the message of the error contains",
    ),
    (
        credentials.the_content_of_a_credentials_file_is_not_in_an_error,
        reading(Logging),
        "a log line of kit.broken contains",
    ),
    (
        credentials.the_content_of_a_credentials_file_is_not_in_an_error,
        reading(Absent),
        "raised NotFound",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_backend_that_says_nothing_of_the_file_passes(judged: Callable[..., Outcome]) -> None:
    outcome = judged(credentials.the_content_of_a_credentials_file_is_not_in_an_error, reading(Careful))

    assert outcome.state is CheckState.PASSED, outcome.text


CHANGED = [
    (credentials.a_process_uses_the_credential_that_the_storage_accepts_now, rotated(Renewing)),
    (credentials.a_process_uses_the_credential_that_the_storage_accepts_now, asked(Asking)),
    (credentials.a_request_is_served_with_its_own_secrets, asked(Asking)),
]


@pytest.mark.parametrize(("check", "backend"), CHANGED)
def test_a_backend_that_uses_what_the_storage_accepts_passes(
    judged: Callable[..., Outcome], check: Any, backend: Any
) -> None:
    outcome = judged(check, backend)

    assert outcome.state is CheckState.PASSED, outcome.text


def test_where_the_credential_is_in_a_file_no_request_has_it(judged: Callable[..., Outcome]) -> None:
    outcome = judged(credentials.a_request_is_served_with_its_own_secrets, rotated(Renewing))

    assert outcome.state is CheckState.SKIPPED
    assert "the credential of the storage is not in requests" in outcome.text
