"""Backends that mistake foreign resources for their own, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS, CheckState, Outcome
from csi_multi_testing.checks import foreign
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import CLUSTER, DRIVER, Storage

from csi_multi.contract import (
    AlreadyExists,
    AttachRequest,
    Device,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    OpenRequest,
    Page,
    PageRequest,
    Snapshot,
    Stamp,
    Strings,
    Volume,
    VolumeRequest,
    missing,
)
from csi_multi.host.command import LocalHost

THEIRS = {
    "another-driver": Stamp(driver="other.example", cluster=CLUSTER, name="another-driver", digest=""),
    "another-cluster": Stamp(driver=DRIVER, cluster="other", name="another-cluster", digest=""),
}


class Careful(MemoryBackend):
    """Looks at the stamp before anything else."""

    def ours(self, stamp: Stamp) -> bool:
        return (stamp.driver, stamp.cluster) == (self.setting.driver, self.setting.cluster)

    def get_volume(self, handle: str) -> Volume:
        found = super().get_volume(handle)
        if not self.ours(found.stamp):
            raise missing("volume", handle)
        return found

    def get_snapshot(self, handle: str) -> Snapshot:
        found = super().get_snapshot(handle)
        if not self.ours(found.stamp):
            raise missing("snapshot", handle)
        return found

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.guard(handle)
        super().delete_volume(handle, secrets)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self.guard(request.handle)
        return super().expand_volume(request)

    def attach(self, request: AttachRequest) -> Strings:
        self.guard(request.handle)
        return super().attach(request)

    def open_device(self, request: OpenRequest) -> Device:
        self.guard(request.handle)
        return super().open_device(request)

    def guard(self, handle: str) -> None:
        found = self.storage.volumes.get(handle)
        if found and not self.ours(found.stamp):
            raise FailedPrecondition(f"volume {handle!r} belongs to driver {found.stamp.driver!r}")

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self.storage.listed(self.only_ours(self.storage.volumes), page)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        rows = {key: one for key, one in self.storage.snapshots.items() if source in (None, one.source)}
        return self.storage.listed(self.only_ours(rows), page)

    def only_ours(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        return {key: row for key, row in rows.items() if self.ours(row.stamp)}


def beside(kind: type[MemoryBackend], **given: Any) -> Callable[[], Storage]:
    """Return what makes a Storage with other drivers' things on it."""

    def storage() -> Storage:
        known = memory.storage(kind)
        storage = known.connect(LocalHost()).storage  # type: ignore[attr-defined]

        def put() -> None:
            for key, stamp in THEIRS.items():
                storage.volumes[key] = Volume(handle=key, size=4096, stamp=stamp)
                storage.snapshots[key] = Snapshot(
                    handle=key, source=key, size=4096, created=datetime.now(UTC), stamp=stamp
                )

        return replace(known, **{"foreign": put, "foreign_handles": tuple(THEIRS), **given})

    storage.__name__ = kind.__name__
    return storage


class Listing(Careful):
    """Lists whatever is there."""

    list_volumes = MemoryBackend.list_volumes
    list_snapshots = MemoryBackend.list_snapshots


class Filtering(Careful):
    """Leaves out of a page what is not ours, and ends the listing where a page became empty."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        found = MemoryBackend.list_volumes(self, page)
        kept = tuple(one for one in found.items if self.ours(one.stamp))
        return Page(items=kept, cursor=found.cursor if kept else "")


class Finding(Careful):
    """Finds by name, whoever stamped it."""

    get_volume = MemoryBackend.get_volume


class FindingSnapshots(Careful):
    get_snapshot = MemoryBackend.get_snapshot


class Deleting(Careful):
    delete_volume = MemoryBackend.delete_volume


class Attaching(Careful):
    attach = MemoryBackend.attach


class Growing(Careful):
    expand_volume = MemoryBackend.expand_volume


class Opening(Careful):
    def guard(self, handle: str) -> None:
        """Sees nothing."""

    def open_device(self, request: OpenRequest) -> Any:
        """Open whatever there is."""


class Adopting(Careful):
    """Puts its stamp on what has the name that it was asked for."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except AlreadyExists:
            found = self.storage.volumes.get(request.name)
            if found is None or self.ours(found.stamp):
                raise
            self.storage.volumes[request.name] = replace(found, size=self.storage.volumes[request.name].size * 4096)
            self.storage.volumes[request.name] = replace(self.storage.volumes[request.name], stamp=request.stamp)
            return self.storage.volumes[request.name]


class Tidy(Careful):
    """Sweeps away at its start what it does not know."""

    def resume(self) -> None:
        for rows in (self.storage.volumes, self.storage.snapshots):
            for key in [key for key, row in rows.items() if not self.ours(row.stamp)]:
                del rows[key]


ALL = "which belongs to another owner"


class Denying(Careful):
    """Says of what belongs to others that it is gone."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        super().delete_volume(handle, secrets)


BROKEN = [
    (foreign.foreign_volumes_are_not_listed, beside(Listing), "with foreign resources on the storage: found"),
    (foreign.foreign_volumes_are_not_listed, beside(Filtering), "missing, although they exist"),
    (foreign.foreign_volumes_are_not_listed, beside(Careful, foreign=list), "Storage.foreign created nothing"),
    (foreign.foreign_snapshots_are_not_listed, beside(Listing), "with foreign resources on the storage: found"),
    (foreign.foreign_resources_are_not_found, beside(Finding), f"get_volume('another-driver'), {ALL}"),
    (foreign.foreign_resources_are_not_found, beside(FindingSnapshots), f"get_snapshot('another-driver'), {ALL}"),
    (foreign.foreign_resources_cannot_be_deleted, beside(Deleting), f"{ALL}: succeeded"),
    (foreign.foreign_resources_cannot_be_deleted, beside(Denying), "treats as success"),
    (foreign.foreign_resources_cannot_be_deleted, beside(FindingSnapshots), f"{ALL}: succeeded"),
    (foreign.foreign_volumes_cannot_be_used, beside(Attaching), f"attach on 'another-driver', {ALL}"),
    (foreign.foreign_volumes_cannot_be_used, beside(Growing), f"expand_volume on 'another-driver', {ALL}"),
    (foreign.foreign_volumes_cannot_be_opened, beside(Opening, devices=True), "its device could be formatted"),
    (foreign.a_name_of_a_foreign_resource_is_not_taken_over, beside(Adopting), "the answer is the foreign volume"),
    (foreign.foreign_resources_survive_work_on_own_volumes, beside(Tidy), "resume, called by a starting process"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("one", [one for one in CHECKS.values() if one.group == "foreign"], ids=lambda one: one.name)
def test_a_backend_that_looks_at_stamps_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, beside(Careful, devices=True))

    words = "volumes in memory have no device"
    assert outcome.state is CheckState.PASSED or words in outcome.text, outcome.text
