"""Backends that read a file with credentials and tell what is in it, and the checks that find it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import credentials
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import Storage

from csi_multi.contract import FailedPrecondition, NotFound, Unauthenticated, Volume

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


BROKEN = [
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
