"""Backends that lose, with a change of a volume, what distinguishes it from an earlier one of its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.checks import kept_sources
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import NO_SECRETS, ExpandRequest, Expansion, ModifyRequest, Strings, ids

from .loop_devices import Looped, looped


class Renews(MemoryBackend):
    """A volume that was changed is another one to its snapshots."""

    def renew(self, handle: str) -> None:
        self.change_sources(handle, ids.earlier(handle, "changed"))

    def change_sources(self, old: str, new: str) -> None:
        for key, one in self.storage.snapshots.items():
            if one.source == old:
                self.storage.snapshots[key] = replace(one, source=new)


class RenewsWhenGrown(Renews):
    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self.renew(request.handle)
        return super().expand_volume(request)


class RenewsWhenModified(Renews):
    def modify_volume(self, request: ModifyRequest) -> None:
        super().modify_volume(request)
        self.renew(request.handle)


class AdoptsWhenGrown(Renews):
    """A volume that was changed takes the snapshots of whatever had its name."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        for one in list(self.storage.snapshots.values()):
            if one.source.startswith(f"x-{request.handle}"[:10]):
                self.change_sources(one.source, request.handle)
        return super().expand_volume(request)


class RenewsWhenFormatted(Looped, Renews):
    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        super().formatted(handle)
        self.renew(handle)


BROKEN = [
    (
        kept_sources.snapshots_keep_their_source_when_volumes_grow,
        RenewsWhenGrown,
        "expand_volume before and after create_snapshot, then the source of get_snapshot",
    ),
    (
        kept_sources.snapshots_keep_their_source_when_volumes_grow,
        AdoptsWhenGrown,
        "the source of the earlier one's snapshot is",
    ),
    (
        kept_sources.snapshots_keep_their_source_when_volumes_are_modified,
        RenewsWhenModified,
        "modify_volume before and after create_snapshot, then the source of get_snapshot",
    ),
    (
        kept_sources.snapshots_keep_their_source_when_volumes_are_formatted,
        looped(RenewsWhenFormatted),
        "the format notes before and after create_snapshot, then the source of get_snapshot",
    ),
]


@pytest.mark.root
@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
