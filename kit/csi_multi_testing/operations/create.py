"""Operations that create one resource under a name: volumes, copies, snapshots, group snapshots."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from csi_multi.contract import GroupSnapshot, Snapshot, Stamp, Volume

from ..assertions import expect, same
from ..context import CheckContext, source
from ..counting import added_since
from ..protocol import VolumeSpec
from .base import Operation, attempt, expect_not_found, is_not_found, wait_until_ready
from .effects import expect_same_effect, model_of

SEED = "kit source"
SNAPSHOTS_PER_RUN = 4  # of one volume: two are interrupted, one is repeated, one is another request


class SnapshotSources:
    """Volumes to take snapshots of: others, before one has had more than it can have (Storage.snapshots)."""

    def __init__(self, t: CheckContext, *makes: Callable[[CheckContext], Volume]) -> None:
        self._t = t
        self._makes = makes
        self._runs = 0
        self.volumes = [make(t) for make in makes]

    def renew(self) -> None:
        """Call it before each run, which takes at most SNAPSHOTS_PER_RUN of each volume, deleted ones included."""
        most = self._t.storage.snapshots
        if most and (self._runs + 1) * SNAPSHOTS_PER_RUN > most:
            for volume in self.volumes:
                if attempt(partial(self._t.client.delete, volume.handle))[1] is None:  # else at the end of the check
                    self._t.forget(volume)
            self.volumes, self._runs = [make(self._t) for make in self._makes], 0
        self._runs += 1


class CreateOperation(Operation):
    """Creates a resource under a name; repeated, it must be created once."""

    found_by: str  # the contract's method

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self.name = ""
        self.made: Any = None
        self._stamp: Stamp | None = None  # of the resource of a run without a fault
        self._count = 0  # of resources that this run created

    def prepare(self) -> None:
        self.name, self.made = self.t.name(), None

    def find(self) -> Any:
        return getattr(self.t.backend, self.found_by)(self.name)

    @abstractmethod
    def other(self) -> Any:
        """Request something else under the same name."""

    @abstractmethod
    def delete(self, handle: str) -> None:
        """Delete the resource."""

    def verify(self, answer: Any, what: str) -> None:
        self.made = answer
        new = self.t.resources() - self.before
        if self._stamp is None:
            self._stamp, self._count = answer.stamp, added_since(self.t, self.before)
        same(answer.stamp, replace(self._stamp, name=self.name), f"{what}: the stamp")
        found, error = attempt(self.find)
        expect(error is None, f"{what}: {self.found_by} raised {error!r}")
        same(as_ready(found), as_ready(answer), f"{what}: {self.found_by}")
        if not self.t.no_data_reason():
            self.verify_data(answer, what)
        expect(
            added_since(self.t, self.before) == self._count,
            f"{what}: the storage holds {len(new)} new resources ({', '.join(sorted(new)[:10])}), "
            f"{self.method} without a fault creates {self._count}",
        )

    def verify_data(self, made: Any, what: str) -> None:
        """Require the right data."""

    def is_missing(self) -> bool:
        """Whether no resource has the name."""
        return is_not_found(self.find)

    def is_unchanged(self) -> bool:
        return self.is_missing() and not self.t.resources() - self.before

    def remove(self) -> None:
        if self.made is None:
            return
        self.delete(self.made.handle)
        self.t.forget(self.made)
        expect_not_found(self.find, f"{self.found_by} after the deletion")
        self.made = None


class CreateVolume(CreateOperation):
    method = "create_volume"
    found_by = "find_volume"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self.model = model_of(t, {})

    def spec(self, **more: Any) -> VolumeSpec:
        return self.t.spec(self.name, **more)

    def act(self) -> Volume:
        return self.t.create(self.spec())

    def other(self) -> Volume:
        if self.t.storage.other_parameters is not None:
            return self.t.create(self.spec(parameters=self.t.storage.other_parameters))
        return self.t.volume(self.name, 3 * self.t.size)

    def delete(self, handle: str) -> None:
        self.t.client.delete(handle)

    def verify(self, answer: Any, what: str) -> None:
        wanted = self.spec().size
        expect(wanted.holds(answer.size), f"{what}: the volume has {answer.size} bytes, requested was {wanted}")
        expect_same_effect(self.t, answer, self.model, what)
        super().verify(answer, what)


class RestoreVolume(CreateVolume):
    method = "restore_volume"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self.source_volume = source_volume(t)
        self.source: Volume | Snapshot = self.source_of(self.source_volume)

    def source_of(self, volume: Volume) -> Volume | Snapshot:
        return wait_until_ready(self.t, self.t.snapshot(volume))

    def spec(self, **more: Any) -> VolumeSpec:
        return self.t.spec(self.name, 0, source=source(self.source), **more)

    def other(self) -> Volume:
        """Request an empty volume under the same name: the user has changed the request."""
        return self.t.volume(self.name)

    def verify_data(self, made: Volume, what: str) -> None:
        self.t.expect_filled(made, SEED, self.source_volume.size, what)


class CloneVolume(RestoreVolume):
    method = "clone_volume"

    def source_of(self, volume: Volume) -> Volume:
        return volume


class CreateSnapshot(CreateOperation):
    method = "create_snapshot"
    found_by = "find_snapshot"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self.sources = SnapshotSources(t, source_volume, CheckContext.volume)

    @property
    def source_volume(self) -> Volume:
        return self.sources.volumes[0]

    @property
    def second(self) -> Volume:
        return self.sources.volumes[1]

    def renew(self) -> None:
        self.sources.renew()

    def act(self) -> Snapshot:
        return self.t.snapshot(self.source_volume, self.name)

    def other(self) -> Snapshot:
        return self.t.snapshot(self.second, self.name)

    def delete(self, handle: str) -> None:
        self.t.client.delete_snapshot(handle)

    def verify(self, answer: Any, what: str) -> None:
        same(answer.source, self.source_volume.handle, f"{what}: the snapshot's source")
        super().verify(answer, what)

    def verify_data(self, made: Snapshot, what: str) -> None:
        copy = self.t.copy(wait_until_ready(self.t, made))
        self.t.expect_filled(copy, SEED, self.source_volume.size, f"{what}: a volume restored from the snapshot")
        self.t.client.delete(copy.handle)
        self.t.forget(copy)


class CreateGroupSnapshot(CreateSnapshot):
    method = "create_group_snapshot"
    found_by = "find_group_snapshot"

    def act(self) -> GroupSnapshot:  # type: ignore[override]
        return self.t.group([self.source_volume, self.second], self.name)

    def other(self) -> GroupSnapshot:  # type: ignore[override]
        return self.t.group([self.second], self.name)

    def delete(self, handle: str) -> None:
        self.t.client.delete_group(handle)

    def verify(self, answer: Any, what: str) -> None:
        sources = sorted(one.source for one in answer.snapshots)
        same(sources, sorted((self.source_volume.handle, self.second.handle)), f"{what}: the members' sources")
        CreateOperation.verify(self, answer, what)

    def verify_data(self, made: Any, what: str) -> None:
        [member] = [one for one in made.snapshots if one.source == self.source_volume.handle]
        super().verify_data(member, what)


def source_volume(t: CheckContext) -> Volume:
    """Return a volume to copy, with known data if it can be written."""
    volume = t.volume()
    if not t.no_data_reason():
        t.fill(volume, SEED)
    return volume


def as_ready(made: Any) -> Any:
    """Return snapshots with ready=True: that field may change between two reads."""
    if isinstance(made, Snapshot):
        return replace(made, ready=True)
    if isinstance(made, GroupSnapshot):
        return replace(made, snapshots=tuple(as_ready(one) for one in made.snapshots))
    return made
