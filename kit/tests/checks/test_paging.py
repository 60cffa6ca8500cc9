"""Backends whose pages end a listing early, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.checks import paging
from csi_multi_testing.context import in_process
from csi_multi_testing.left_out import foreign_volumes
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.other_owners import OTHERS, client_of
from csi_multi_testing.storage import CLUSTER, setting

from csi_multi.contract import Page, PageRequest, Snapshot, Volume, VolumeRequest

from .file_backend import FileBackend, over_files
from .test_foreign import Careful


class Windowed(Careful):
    """Looks at one name more than a page has, and some of these are not ours."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self.window(self.storage.volumes, page)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        return self.window(self.storage.snapshots, page, lambda one: source in (None, one.source))

    def window(self, rows: Mapping[str, Any], page: PageRequest, keep: Callable[[Any], bool] = bool) -> Page[Any]:
        names = sorted(name for name in rows if name > page.cursor)
        looked_at = names[: page.limit + 1] if page.limit else names
        found = [rows[name] for name in looked_at if self.ours(rows[name].stamp) and keep(rows[name])]
        shown = found[: page.limit or None]
        return Page(items=tuple(shown), cursor=shown[-1].handle if len(shown) < len(found) else "")


class Short(MemoryBackend):
    """Lists what there was at the first page; a page that has lost an item since is the last one."""

    order: tuple[str, ...] = ()

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self.short(self.storage.volumes, page, self._shown)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        wanted = {key: one for key, one in self.storage.snapshots.items() if source in (None, one.source)}
        return self.short(wanted, page)

    def short(self, rows: Mapping[str, Any], page: PageRequest, shown: Any = lambda one: one) -> Page[Any]:
        if not page.cursor:
            self.order = tuple(sorted(rows))
        rest = [name for name in self.order if name > page.cursor]
        window = rest[: page.limit or None]
        items = tuple(shown(rows[name]) for name in window if name in rows)
        more = len(items) == len(window) < len(rest)
        return Page(items=items, cursor=items[-1].handle if more and items else "")


class FilteredLate(MemoryBackend):
    """Filters a page of all snapshots; an empty one is the last."""

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        found = super().list_snapshots(page)
        items = tuple(one for one in found.items if source in (None, one.source))
        return Page(items=items, cursor=found.cursor if items else "")


class Tolerant(FileBackend):
    """Goes on past a record that cannot be read. Correct."""

    def _page(self, kind: str, page: PageRequest, form: Any, keep: Any = bool, shown_as: Any = lambda one: one) -> Any:
        def read(name: str) -> Any:
            try:
                return shown_as(self._read(kind, name, form))
            except Exception:
                return None

        names = sorted(path.name for path in (self.root / kind).iterdir() if path.name > page.cursor)
        return self.cut(names, page.limit, lambda name: (one := read(name)) and keep(one) and one)

    def cut(self, names: list[str], limit: int, read: Callable[[str], Any]) -> Page[Any]:
        found = [one for one in map(read, names) if one]
        shown = found[: limit or None]
        return Page(items=tuple(shown), cursor=shown[-1].handle if len(shown) < len(found) else "")


class EndingAtDamage(Tolerant):
    """Looks at one name more than a page has."""

    def cut(self, names: list[str], limit: int, read: Callable[[str], Any]) -> Page[Any]:
        return super().cut(names[: limit + 1] if limit else names, limit, read)


BROKEN = [
    (paging.pages_of_volumes_go_on_past_what_is_left_out_or_deleted, Windowed, "3 per page, beside what is left out"),
    (paging.pages_of_volumes_go_on_past_what_is_left_out_or_deleted, over_files(EndingAtDamage), "beside what is left"),
    (paging.pages_of_volumes_go_on_past_what_is_left_out_or_deleted, Short, "were deleted before the next page"),
    (paging.pages_of_snapshots_go_on_past_what_is_left_out_or_deleted, Windowed, "3 per page, beside what is left out"),
    (
        paging.pages_of_snapshots_go_on_past_what_is_left_out_or_deleted,
        over_files(EndingAtDamage),
        "beside what is left out",
    ),
    (paging.pages_of_snapshots_go_on_past_what_is_left_out_or_deleted, Short, "were deleted before the next page"),
    (paging.pages_of_the_snapshots_of_a_volume_go_on_past_those_of_others, FilteredLate, "of one volume"),
    (paging.pages_of_the_snapshots_of_a_volume_go_on_past_those_of_others, Windowed, "of one volume"),
    (paging.pages_of_the_snapshots_of_a_volume_go_on_past_those_of_others, Short, "of one volume"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("check", sorted({check for check, *_ in BROKEN}, key=lambda one: one.__name__))
@pytest.mark.parametrize("backend", [Careful, over_files(FileBackend), over_files(Tolerant)])
def test_a_correct_backend_passes(judged: Any, check: Any, backend: Any) -> None:
    outcome = judged(check, backend)

    assert outcome.state.value == "passed", outcome.text


def test_a_client_of_another_owner_has_its_own_setting() -> None:
    t = in_process(memory.storage(Careful))

    with t:
        mine = t.volume()
        for changes in OTHERS:
            found = client_of(t, changes).backend.setting
            assert {name: getattr(found, name) for name in changes} == changes
        assert t.backend.setting.cluster == CLUSTER
        assert t.client.get(mine.handle) == mine


class OneOwner(MemoryBackend):
    """Refuses everything to other owners, as a storage does that belongs to one."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.stamp.cluster != CLUSTER or request.stamp.driver != self.setting.driver:
            raise memory.unreachable()
        return super().create_volume(request)


def test_an_owner_who_is_refused_creates_nothing_between_ours() -> None:
    t = in_process(memory.storage(OneOwner))
    fixed = replace(memory.storage(), connect=lambda _host: MemoryBackend(memory.MemoryConfig(), FIXED))

    with t:
        assert len(list(foreign_volumes(t))) == 1
    with in_process(fixed) as other:
        assert list(foreign_volumes(other)) == []


FIXED = setting(None)  # type: ignore[arg-type]
