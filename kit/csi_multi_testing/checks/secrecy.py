"""Secrets stay with the request: not on the resource, not in a text, not in the arguments of a command."""

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
SHORT = 6  # characters: a shorter value turns up by chance


def hidden(text: str, secrets: Strings, where: str) -> None:
    """Require that no secret stands in the text. The verdict names its key only."""
    for key, value in secrets.items():
        if len(value) >= SHORT:
            expect(value not in text, f"{where} shows the value of secret {key!r}")


def unknown(t: CheckContext) -> dict[str, str]:
    """Return secrets that the storage accepts, and one more that it knows nothing of."""
    return {**t.storage.secrets, "kit-secret": MARKER}


def wrong(t: CheckContext) -> dict[str, str]:
    """Return secrets of the right names, none of which is right."""
    return dict.fromkeys((*t.storage.secrets, "kit-secret"), MARKER)


@check(target=Target.BACKEND)
def a_secret_is_not_stored_with_the_volume(t: CheckContext) -> None:
    secrets = unknown(t)
    made = create(t, request(t, secrets=secrets))

    hidden(repr(made), secrets, "create_volume: the answer")
    hidden(repr(t.backend.get_volume(made.handle)), secrets, "get_volume: the answer")
    for name in t.new():
        hidden(name, secrets, "the name of a resource that create_volume made")
    if b.ListVolumes in t.features:
        hidden(repr(pages(t.client.list_volumes)), secrets, "list_volumes: the answer")


@check(target=Target.BACKEND)
def a_secret_is_not_in_the_arguments_of_a_command(t: CheckContext) -> None:
    """Everybody on the machine can read those; standard input and files with mode 0600 are for secrets."""
    secrets = unknown(t)
    with t.injector.inject(0):
        made = create(t, request(t, secrets=secrets))
        t.backend.delete_volume(made.handle, secrets)

    for call in t.injector.calls:
        hidden(call, secrets, f"create_volume or delete_volume: a call to {call.partition(' ')[0]!r}")


def _failures(t: CheckContext, secrets: Strings) -> list[tuple[str, Callable[[], Any]]]:
    """Return requests that fail, most of them whatever the secrets are."""
    taken = t.spec()
    t.create(taken)
    again = replace(t.in_process.request(taken), secrets=secrets)
    impossible = request(t, secrets=secrets, size=SizeRange(required=t.storage.too_large))
    return [
        ("create_volume with wrong secrets", lambda: create(t, request(t, secrets=secrets))),
        ("create_volume with a name that is taken", lambda: create(t, again)),
        ("create_volume for a size that is too large", lambda: create(t, impossible)),
        ("delete_volume of nothing", lambda: t.backend.delete_volume(t.name(), secrets)),
    ]


@check(target=Target.BACKEND)
def a_secret_is_not_in_an_error_message(t: CheckContext) -> None:
    """The text reaches logs and events that anybody can read."""
    for secrets in (unknown(t), wrong(t)):
        for what, fail in _failures(t, secrets):
            try:
                fail()
            except StorageError as error:
                hidden(f"{error} {error!r}", secrets, f"{what}: the text of {type(error).__name__}")
