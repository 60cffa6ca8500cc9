"""What exists of the group snapshots that the driver cuts itself (mixed_groups.py): found by name, and removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ..contract.backend import Snapshots
from ..contract.errors import FailedPrecondition, NotFound, WrongNode
from ..contract.model import Snapshot, Strings
from ..core import idempotent, mixed_groups
from ..core.idempotent import require
from ..core.mixed_groups import MemberPlace, MixedGroup
from ..loading.instance import Instance
from .service_context import ServiceContext


class MixedGroupStore:
    """The snapshots of groups, in all instances."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def existing(self, group: MixedGroup) -> Iterator[tuple[Instance, Snapshot]]:
        """Yield instance and snapshot of each member that exists, in their order."""
        for number, place in enumerate(group.places):
            instance = self._instance(place)
            backend = require(instance.backend, Snapshots, "snapshots")
            with suppress(NotFound):
                yield instance, backend.find_snapshot(group.member(number))

    def noted(self, place: MemberPlace, key: str) -> tuple[MixedGroup | None, bool]:
        """Return the group as its first member or its mark notes it, and whether it has a mark."""
        backend = require(self._instance(place).backend, Snapshots, "snapshots")
        unnamed = MixedGroup(key, (place,))
        found = {}
        for name in (unnamed.mark, unnamed.member(0)):
            with suppress(NotFound):
                found[name] = mixed_groups.noted(key, backend.find_snapshot(name).stamp.context)
        return next((one for one in found.values() if one), None), unnamed.mark in found

    def _instance(self, place: MemberPlace) -> Instance:
        """Raises FailedPrecondition for one that is not configured now: its snapshots may still exist."""
        try:
            instance = self._context.registry.get(place.instance)
        except NotFound:
            raise FailedPrecondition(
                f"a member of the group belongs to backend {place.instance!r}, which is not configured; configure it"
            ) from None
        if place.node != self._context.driver.node:
            raise WrongNode(f"a member of the group is on node {place.node!r}, not on {self._context.driver.node!r}")
        return instance

    def remove(self, group: MixedGroup, secrets: Strings, *, keep_mark: bool = False) -> None:
        """Remove all snapshots of the group, the first member and the mark last: they note where the others are."""
        for instance, snapshot in reversed(list(self.existing(group))):
            self._remove_one(group, require(instance.backend, Snapshots, "snapshots"), snapshot, secrets)
        owner = require(self._instance(group.places[0]).backend, Snapshots, "snapshots")
        with suppress(NotFound):
            if not keep_mark:
                self._remove_one(group, owner, owner.find_snapshot(group.mark), secrets)

    def _remove_one(self, group: MixedGroup, backend: Snapshots, snapshot: Snapshot, secrets: Strings) -> None:
        if mixed_groups.group_of(snapshot.stamp.context) != group.id:
            raise FailedPrecondition(
                f"snapshot {snapshot.handle!r} has the name of a member of group {group.id!r}, but is none; it is left"
            )
        idempotent.delete_snapshot(backend, snapshot.handle, secrets)
