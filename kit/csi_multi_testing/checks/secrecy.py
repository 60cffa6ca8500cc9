"""Secrets stay in the request: not on the resource, not in a message, not in the arguments of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from csi_multi.contract import SizeRange, StorageError, Strings
from csi_multi.contract import backend as b

from ..assertions import expect
from ..check import check
from ..context import CheckContext, pages
from ..protocol import Target
from .stamps import create, request

MARKER = "kit-secret-c0ffee-4711"
MIN_LENGTH = 6  # characters: a shorter value can occur by chance


def expect_no_secret(text: str, secrets: Strings, where: str) -> None:
    """Require that no secret is in the text. The message names only its key."""
    for key, value in secrets.items():
        if len(value) >= MIN_LENGTH:
            expect(value not in text, f"{where} contains the value of secret {key!r}")


def with_unknown_secret(t: CheckContext) -> dict[str, str]:
    """Return secrets that the storage accepts, and one more that it does not use."""
    return {**t.storage.secrets, "kit-secret": MARKER}


def wrong_secrets(t: CheckContext) -> dict[str, str]:
    """Return secrets with the right keys and wrong values."""
    return dict.fromkeys((*t.storage.secrets, "kit-secret"), MARKER)


@check(target=Target.BACKEND)
def a_secret_is_not_stored_with_the_volume(t: CheckContext) -> None:
    secrets = with_unknown_secret(t)
    made = create(t, request(t, secrets=secrets))

    expect_no_secret(repr(made), secrets, "create_volume: the answer")
    expect_no_secret(repr(t.backend.get_volume(made.handle)), secrets, "get_volume: the answer")
    for name in t.new_resources():
        expect_no_secret(name, secrets, "the name of a resource that create_volume made")
    if b.ListVolumes in t.features:
        expect_no_secret(repr(pages(t.client.list_volumes)), secrets, "list_volumes: the answer")


@check(target=Target.BACKEND)
def a_secret_is_not_in_the_arguments_of_a_command(t: CheckContext) -> None:
    """All users of the machine can read arguments. Pass secrets by standard input or in files with mode 0600."""
    secrets = with_unknown_secret(t)
    with t.injector.inject(0):
        made = create(t, request(t, secrets=secrets))
        t.backend.delete_volume(made.handle, secrets)

    for call in t.injector.calls:
        expect_no_secret(call, secrets, f"create_volume or delete_volume: a call to {call.partition(' ')[0]!r}")


def _failures(t: CheckContext, secrets: Strings) -> list[tuple[str, Callable[[], Any]]]:
    """Return requests that fail, most of them with any secrets."""
    taken = t.spec()
    t.create(taken)
    again = replace(t.in_process.request(taken), secrets=secrets)
    impossible = request(t, secrets=secrets, size=SizeRange(required=t.storage.too_large))
    return [
        ("create_volume with wrong secrets", lambda: create(t, request(t, secrets=secrets))),
        ("create_volume with a taken name", lambda: create(t, again)),
        ("create_volume for a size that is too large", lambda: create(t, impossible)),
        ("delete_volume of an unknown volume", lambda: t.backend.delete_volume(t.name(), secrets)),
    ]


@check(target=Target.BACKEND)
def a_secret_is_not_in_an_error_message(t: CheckContext) -> None:
    """Error messages reach logs and events that many people can read."""
    for secrets in (with_unknown_secret(t), wrong_secrets(t)):
        for what, fail in _failures(t, secrets):
            try:
                fail()
            except StorageError as error:
                expect_no_secret(f"{error} {error!r}", secrets, f"{what}: the message of {type(error).__name__}")
