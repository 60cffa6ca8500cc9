"""Secrets stay in the request: not on the resource, not in a message, not in the arguments of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from csi_multi.contract import SizeRange, StorageError, Strings
from csi_multi.contract import backend as b
from csi_multi.loading.backend_proxy import takes_secrets

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext, pages
from ..marked_secrets import expect_no_secret, wrong_secrets
from ..operations.base import attempt, describe_error
from ..protocol import Target
from ..storage_contents import small_files
from .devices import open_device
from .stamps import create, request


@check(target=Target.BACKEND)
def a_secret_is_not_stored_with_the_volume(t: CheckContext) -> None:
    secrets = t.storage.secrets
    made = create(t, request(t, secrets=secrets))

    expect_no_secret(repr(made), secrets, "create_volume: the answer")
    expect_no_secret(repr(t.backend.get_volume(made.handle)), secrets, "get_volume: the answer")
    for name in t.new_resources():
        expect_no_secret(name, secrets, "the name of a resource that create_volume made")
    if b.ListVolumes in t.features:
        expect_no_secret(repr(pages(t.client.list_volumes)), secrets, "list_volumes: the answer")
    for file, content in small_files(t.storage.records).items():
        expect_no_secret(content.decode("latin-1"), secrets, f"{file}, after create_volume,")


@check(target=Target.BACKEND)
def a_secret_is_not_in_the_arguments_of_a_command(t: CheckContext) -> None:
    """All users of the machine can read arguments. Pass secrets by standard input or in files with mode 0600."""
    secrets = t.storage.secrets
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
    for secrets in (t.storage.secrets, wrong_secrets(t)):
        for what, fail in _failures(t, secrets):
            try:
                fail()
            except StorageError as error:
                expect_no_secret(f"{error} {error!r}", secrets, f"{what}: the message of {type(error).__name__}")


NODE_METHODS = ("find_device", "has_data", "formatting", "formatted", "refresh_device", "close_device")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_secret_is_not_revealed_by_the_methods_of_the_node(t: CheckContext) -> None:
    """Neither in the message of an error, for right and wrong secrets, nor in the arguments of a command."""
    own = [name for name in NODE_METHODS if hasattr(t.backend, name) and takes_secrets(getattr(t.backend, name))]
    if not own:
        raise CheckSkipped("the backend is one of contract 1.0, whose methods of the node get no secrets")
    for secrets in (t.storage.secrets, wrong_secrets(t)):
        volume = t.volume()
        open_device(t, volume)
        for name in own:
            for handle in (volume.handle, t.name()):
                with t.injector.inject(0):
                    _, error = attempt(lambda: getattr(t.backend, name)(handle, secrets=secrets))  # noqa: B023
                expect_no_secret(f"{error} {error!r}", secrets, f"{name}: the message of {type(error).__name__}")
                for call in t.injector.calls:
                    expect_no_secret(call, secrets, f"{name}: a call to {call.partition(' ')[0]!r}")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_device_is_found_and_closed_without_secrets(t: CheckContext) -> None:
    """Unpublishing and unstaging have none, and the driver may have been restarted since the device was opened."""
    volume = t.volume()
    device = open_device(t, volume)
    t.client.restart()
    for name, wanted in (("find_device", device), ("close_device", None), ("find_device", None)):
        found, error = attempt(lambda: getattr(t.backend, name)(volume.handle))  # noqa: B023
        problem = f"raised {describe_error(error)}, the contract requires it to succeed" if error else ""
        expect(not problem, f"{name} without secrets: {problem}")
        same(found, wanted, f"{name} without secrets")
