"""Credentials, from files that the configuration names or with requests: they change, and are in no error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from csi_multi.contract import NotFound, StorageError, Strings, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext
from ..marked_secrets import expect_no_secret
from ..operations.base import attempt, describe_error, retry
from ..protocol import Target
from ..secret_watch import MARKER
from ..waiting import BACK_SECONDS
from .stamps import create

# What is there after a wrong mount, or in the middle of a rotation: another form than the one that is expected.
OTHER_FORMS = (
    MARKER,
    f"kit {MARKER}",
    f"kit={MARKER}",
    f"kit:{MARKER}:more\nmore\n",
    f'{{"user": "kit", "password": "{MARKER}"',
    f"[client.kit]\n\tkey = {MARKER}\n",
    f"\xff{MARKER}",
    "",
)


@contextmanager
def _content(file: Path, text: str) -> Iterator[None]:
    before = file.read_bytes()
    file.write_bytes(text.encode("latin-1"))
    try:
        yield
    finally:
        file.write_bytes(before)


@check(needs=("credentials",), target=Target.BACKEND)
def the_content_of_a_credentials_file_is_not_in_an_error(t: CheckContext) -> None:
    """The driver masks the secrets of requests, and does not know those from files."""
    volume = t.volume()
    for file in t.storage.credentials:
        for text in OTHER_FORMS:
            with _content(file, text):
                t.in_process.restart(resume=False)
                calls = {"check": t.backend.check, "get_volume": partial(t.backend.get_volume, volume.handle)}
                for method, ask in calls.items():
                    what = f"{method}, where {file.name!r} of Storage.credentials has {text.replace(MARKER, '***')!r}"
                    _, error = attempt(ask)
                    expect_no_secret(f"{error} {error!r}", {file.name: MARKER}, f"{what}: the message of the error")
                    good = error is None or (isinstance(error, StorageError) and not isinstance(error, NotFound))
                    problem = f"{what}: raised {describe_error(error)}" if error else ""
                    expect(good, f"{problem}, the contract requires FailedPrecondition, Unauthenticated or Unavailable")
        t.client.restart()
        same(t.client.get(volume.handle), volume, "get_volume after a file of Storage.credentials was restored")


@check(needs=("rotate",), target=Target.BACKEND)
def a_process_uses_the_credential_that_the_storage_accepts_now(t: CheckContext) -> None:
    """One that runs while it is changed, and one that starts then. The one from before is needed for nothing."""
    assert t.storage.rotate, "the check needs it"
    volume = t.volume()
    _expect_served(t, volume, "before the credential of the storage is changed")  # whatever keeps it has it now
    with t.storage.rotate() as secrets, _sent(t, secrets or {}):
        _expect_served(t, volume, "after the credential of the storage was changed")
        t.client.restart()
        _expect_served(t, volume, "after the credential of the storage was changed, and a restart")
    _expect_served(t, volume, "after the credential of the storage was changed twice")


@check(needs=("rotate",), target=Target.BACKEND)
def a_request_is_served_with_its_own_secrets(t: CheckContext) -> None:
    """And not with those of the first request, or of the last one that was served."""
    assert t.storage.rotate, "the check needs it"
    volume, earlier = t.volume(), t.storage.secrets
    with t.storage.rotate() as secrets:
        if not secrets:
            raise CheckSkipped("Storage.rotate yields no secrets: the credential of the storage is not in requests")
        with _sent(t, secrets):
            _expect_served(t, volume, "with secrets that are new")
        spec = t.spec()
        with t.refused(StorageError, what="create_volume with the secrets from before, which the storage refuses"):
            create(t, replace(t.in_process.request(spec), secrets=earlier))
        with _sent(t, secrets):
            retry(
                partial(t.create, spec), "create_volume with new secrets, after it was refused with those from before"
            )


@contextmanager
def _sent(t: CheckContext, secrets: Strings) -> Iterator[None]:
    """Send these secrets with all requests of the block, in place of those with the same keys."""
    before = t.storage
    t.storage = t.in_process.storage = replace(before, secrets={**before.secrets, **secrets})
    try:
        yield
    finally:
        t.storage = t.in_process.storage = before


def _expect_served(t: CheckContext, volume: Volume, when: str) -> None:
    """Require that a volume can be read, and another one made, copied, opened and deleted."""
    retry(t.backend.check, f"check {when}", BACK_SECONDS)
    same(retry(partial(t.client.get, volume.handle), f"get_volume {when}", BACK_SECONDS), volume, f"get_volume {when}")
    made = retry(partial(t.create, t.spec()), f"create_volume {when}", BACK_SECONDS)
    if b.Snapshots in t.features:
        cut = retry(partial(t.snapshot, made, t.name("snapshot")), f"create_snapshot {when}", BACK_SECONDS)
        retry(partial(t.delete, cut), f"delete_snapshot {when}", BACK_SECONDS)
    if t.storage.devices and not t.no_data_reason():
        retry(partial(_opened, t, made), f"open_device {when}", BACK_SECONDS)
    retry(partial(t.delete, made), f"delete_volume {when}", BACK_SECONDS)


def _opened(t: CheckContext, volume: Volume) -> None:
    with t.client.device_path(volume.handle):
        pass
