"""Files with credentials that the configuration names: what is in them is in no error, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from csi_multi.contract import NotFound, StorageError

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..marked_secrets import expect_no_secret
from ..operations.base import attempt, describe_error
from ..protocol import Target
from ..secret_watch import MARKER

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
