"""Backends that keep or tell secrets, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.checks import secrecy
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import Storage

from csi_multi.contract import NotFound, ResourceExhausted, Strings, Unauthenticated, Volume, VolumeRequest

WORD = "correct horse"


class Keeping(MemoryBackend):
    """Keeps the secrets for later, where anybody can read them."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        context = {**request.stamp.context, **request.secrets}
        return super().create_volume(replace(request, stamp=replace(request.stamp, context=context)))


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


class Arguing(MemoryBackend):
    """Hands secrets to a command as arguments."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        self.setting.host.run("true", *(f"--{key}={value}" for key, value in request.secrets.items()))
        return super().create_volume(request)


def telling_the_right_word() -> Storage:
    return memory.storage(Arguing, secrets={"word": WORD})


def locked() -> Storage:
    return memory.storage(Locked, secrets={"word": WORD})


BROKEN = [
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
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("check", {check for check, *_ in BROKEN}, ids=lambda check: check.__name__)
def test_secrets_may_be_demanded(judged: Any, check: Any) -> None:
    outcome = judged(check, lambda: memory.storage(Discreet, secrets={"word": WORD}))

    assert outcome.state.value == "passed", outcome.text
