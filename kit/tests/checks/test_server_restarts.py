"""Backends whose start ends work that ended long ago, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, server_restarts

from csi_multi.contract import NotFound, Stamp, Volume, leaf

from .file_backend import VOLUMES
from .file_server import served
from .whole_files import WholeFiles, over_whole_files


class Journalling(WholeFiles):
    """Keeps a journal of names that are to go, and never crosses one out."""

    def journal(self, name: str) -> None:
        with (self.root / "journal").open("a") as file:
            file.write(f"{name}\n")

    def resume(self) -> None:
        super().resume()
        journal = self.root / "journal"
        for name in journal.read_text().splitlines() if journal.exists() else ():
            with suppress(NotFound):
                self._remove(VOLUMES, name)


class Deletions(Journalling):
    def delete_volume(self, handle: str, secrets: Any) -> None:
        self.journal(handle)
        super().delete_volume(handle, secrets)


class Imports(Journalling):
    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        made = super().import_volume(name, stamp)
        self.journal(leaf(name))
        return made


class Releases(Journalling):
    def release_volume(self, handle: str) -> str:
        text = super().release_volume(handle)
        self.journal(handle)
        return text


class Bare(WholeFiles):
    """Its start removes the data of what it does not find in use."""

    def resume(self) -> None:
        super().resume()
        for entry in (self.root / VOLUMES).iterdir():
            (entry / "data").write_bytes(bytes((entry / "data").stat().st_size))


BROKEN = [
    (
        server_restarts.what_was_made_deleted_and_made_again_is_there_after_a_restart,
        over_whole_files(Deletions),
        "the driver was restarted once, then get_volume of",
    ),
    (
        server_restarts.what_was_made_deleted_and_made_again_is_there_after_a_restart,
        served(Deletions),
        "the server and the driver were killed and started again once, then get_volume of",
    ),
    (
        server_restarts.what_was_made_deleted_and_made_again_is_there_after_a_restart,
        over_whole_files(Bare),
        "the first block differs from what was written",
    ),
    (
        server_restarts.the_earlier_name_of_an_imported_volume_belongs_to_a_new_one_after_a_restart,
        over_whole_files(Imports),
        "a volume was imported, a new one got its earlier name",
    ),
    (
        server_restarts.the_name_of_a_released_volume_belongs_to_a_new_one_after_a_restart,
        over_whole_files(Releases),
        "a volume was released, a new one got its name",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "server_restarts"])
@pytest.mark.parametrize("storage", [over_whole_files(WholeFiles), served()], ids=["alone", "served"])
def test_what_looks_at_what_a_name_is_now_passes(judged: Callable[..., Any], name: str, storage: Any) -> None:
    outcome = judged(CHECKS[name].body, storage)

    assert outcome.state is CheckState.PASSED, outcome.text
