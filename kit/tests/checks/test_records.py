"""Backends that forget a part of a volume's record, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.checks import records
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    AttachRequest,
    ExpandRequest,
    Expansion,
    ModifyRequest,
    Node,
    Page,
    PageRequest,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
)

from .placed import Zonal, zonal


class Rewriting(MemoryBackend):
    """Writes a volume's record again with each change: the defects below are what it forgets."""

    def rewrite(self, handle: str, **forgotten: Any) -> None:
        found = self.storage.volumes[handle]
        self.storage.volumes[handle] = replace(found, stamp=replace(found.stamp, **forgotten))


class Abridging(MemoryBackend):
    """Lists less than it knows."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        found = super().list_volumes(page)
        return replace(found, items=tuple(replace(one, stamp=replace(one.stamp, source=None)) for one in found.items))


class ForgetsTheSource(Rewriting):
    def expand_volume(self, request: ExpandRequest) -> Expansion:
        done = super().expand_volume(request)
        self.rewrite(request.handle, source=None)
        return done


class ForgetsTheContext(Rewriting):
    def modify_volume(self, request: ModifyRequest) -> None:
        super().modify_volume(request)
        self.rewrite(request.handle, context={"fsType": "xfs"})


class ForgetsThePlace(Zonal):
    """Takes a volume of a zone for one that is reachable from everywhere, once it has grown."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        done = super().expand_volume(request)
        self.storage.volumes[request.handle] = replace(self.storage.volumes[request.handle], topology=())
        return done


class ForgetsWhenAttached(Rewriting):
    def attach(self, request: AttachRequest) -> Strings:
        found = super().attach(request)
        self.rewrite(request.handle, digest="")
        return found


class ForgetsWhenDetached(Rewriting):
    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        super().detach(handle, node, secrets)
        self.rewrite(handle, source=None)


class ForgetsWhenCut(Rewriting):
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        if self.storage.volumes[request.source].stamp.source:
            self.rewrite(request.source, context={})
        return made


BROKEN = [
    (records.a_new_volume_keeps_its_whole_record, Abridging, "then list_volumes: .stamp.source is None"),
    (records.an_expansion_changes_nothing_but_the_size, ForgetsTheSource, "then get_volume: .stamp.source is None"),
    (records.an_expansion_changes_nothing_but_the_size, zonal(ForgetsThePlace), ".topology is ()"),
    (records.a_modification_keeps_the_whole_record, ForgetsTheContext, ".stamp.context['csi-multi.fs/blockSize']"),
    (
        records.an_attachment_changes_nothing_but_the_nodes,
        ForgetsWhenAttached,
        "attach, then get_volume: .stamp.digest",
    ),
    (records.an_attachment_changes_nothing_but_the_nodes, ForgetsWhenDetached, "attach and detach, then get_volume"),
    (records.a_snapshot_and_its_deletion_keep_the_whole_record, ForgetsWhenCut, "create_snapshot, then get_volume"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
