"""Group snapshots whose members no single backend can cut together: the driver freezes their filesystems meanwhile.

While a group is made, a snapshot more exists, its mark (core/mixed_groups.py): from before the first member until it is
known that everything stood still until the last one was cut. So of a process that died, the next one knows whether the
group is complete. All snapshots of one that is not are removed, the mark last.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Annotated, Literal

from .._proto import csi_pb2 as pb
from ..contract import ids
from ..contract.backend import NodeLocal, Snapshots
from ..contract.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    StorageError,
    Timeout,
    Unavailable,
    WrongNode,
)
from ..contract.model import Snapshot, SnapshotRequest, Strings
from ..contract.observer import Listeners, Observer
from ..contract.params import Doc, Schema, parse
from ..core import filesystems, idempotent, mixed_groups
from ..core.idempotent import digest, require
from ..core.locks import Locks
from ..core.mixed_groups import MemberPlace, MixedGroup
from ..loading.instance import Instance
from ..node import group_freeze
from ..node.group_freeze import VolumeUse
from . import convert
from .mixed_group_store import MixedGroupStore
from .service_context import ServiceContext

log = logging.getLogger(__name__)

FREEZE_SECONDS = 10.0


class MixedGroupParameters(Schema, frozen=True):
    """What a VolumeGroupSnapshotClass says about groups that no single backend cuts."""

    freeze_seconds: Annotated[float, Doc("seconds for which filesystems are frozen at most", ge=0.1, le=60)] = (
        FREEZE_SECONDS
    )
    crash_consistency: Annotated[
        Literal["required", "best-effort"],
        Doc("with best-effort, raw block volumes in use, which nothing can suspend, are cut one after the other"),
    ] = "required"


KEYS = frozenset({"freezeSeconds", "crashConsistency"})


@dataclass(frozen=True, slots=True)
class Member:
    """A volume of a group."""

    volume: str  # id
    instance: Instance
    handle: str
    place: MemberPlace

    @property
    def backend(self) -> Snapshots:
        return require(self.instance.backend, Snapshots, "CreateSnapshot")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be made."""

    group: MixedGroup
    name: str
    members: tuple[Member, ...]
    digest: str
    limits: MixedGroupParameters
    metadata: Strings
    secrets: Strings
    deadline: float | None

    def owner(self) -> Snapshots:
        """The backend that has the mark."""
        return self.members[0].backend


def split_parameters(given: Strings) -> tuple[MixedGroupParameters, dict[str, str]]:
    """Return what a class says about groups across backends, and what it says to backends. Raises InvalidArgument."""
    own = {key: value for key, value in given.items() if key in KEYS}
    return parse(MixedGroupParameters, own, "parameters"), {k: v for k, v in given.items() if k not in KEYS}


class MixedGroups:
    """Creates, finds and deletes the groups. All volumes are on the node that this process serves."""

    def __init__(self, context: ServiceContext, locks: Locks, listeners: Listeners) -> None:
        self._context = context
        self._locks = locks
        self._listeners = listeners
        self._store = MixedGroupStore(context)

    def create(
        self,
        request: pb.CreateVolumeGroupSnapshotRequest,
        found: Sequence[tuple[str, Instance, str]],
        limits: MixedGroupParameters,
        metadata: Strings,
        deadline: float | None,
    ) -> pb.VolumeGroupSnapshot:
        """Return the group, made now or by an earlier identical request. `found`: volume id, instance and handle."""
        plan = self._plan(request, found, limits, metadata, deadline)
        on_node = [("volume on this node", one.volume) for one in plan.members]
        with self._locks.hold("CreateVolumeGroupSnapshot", [("group snapshot", plan.group.id)], on_node):
            if not self._is_pending(plan) and (earlier := self._earlier(plan)):
                return convert.mixed_group(plan.group.id, earlier)
            self._store.remove(plan.group, plan.secrets)  # what an earlier try left
            return convert.mixed_group(plan.group.id, self._make(plan))

    def get(self, group_id: str) -> pb.VolumeGroupSnapshot:
        """Like `read`, for an RPC that has not locked the group. Raises Busy while it is made or deleted."""
        with self._locks.hold("GetVolumeGroupSnapshot", (), [("group snapshot", group_id)]):
            return self.read(group_id)

    def read(self, group_id: str) -> pb.VolumeGroupSnapshot:
        """Return the group. Raises NotFound, also when it is not complete."""
        place, key = mixed_groups.parse(group_id)
        missing = NotFound(f"group snapshot {group_id!r} does not exist, or is not complete")
        group, is_pending = self._store.noted(place, key)
        if group is None or is_pending:
            raise missing
        existing = self._store.existing(group)
        members = [one for one in existing if mixed_groups.group_of(one[1].stamp.context) == group.id]
        if len(members) < len(group.places):
            raise missing
        return convert.mixed_group(group.id, members)

    def delete(self, group_id: str, secrets: Strings) -> None:
        """Delete the group, complete or not."""
        place, key = mixed_groups.parse(group_id)
        group, _ = self._store.noted(place, key)
        if group:
            self._store.remove(group, secrets)

    def _plan(
        self,
        request: pb.CreateVolumeGroupSnapshotRequest,
        found: Sequence[tuple[str, Instance, str]],
        limits: MixedGroupParameters,
        metadata: Strings,
        deadline: float | None,
    ) -> _Plan:
        try:
            members = tuple(self._member(*one) for one in sorted(found, key=lambda one: one[0]))
        except WrongNode:
            self._refuse_taken(request.name, [instance for _, instance, _ in found])
            raise
        group = MixedGroup(mixed_groups.key_of(request.name), tuple(one.place for one in members))
        return _Plan(
            group=group,
            name=request.name,
            members=members,
            digest=digest({"name": request.name}, {str(n): one.volume for n, one in enumerate(members)}),
            limits=limits,
            metadata=metadata,
            secrets=dict(request.secrets),
            deadline=deadline,
        )

    def _member(self, volume: str, instance: Instance, handle: str) -> Member:
        backend = require(instance.backend, Snapshots, "CreateVolumeGroupSnapshot")
        if not isinstance(backend, NodeLocal):
            raise InvalidArgument(
                f"source_volume_ids: all volumes of a group must belong to one backend that cuts groups, or be local "
                f"to this node; {volume!r} may be in use on another node, where it cannot be frozen"
            )
        if (node := backend.node_of(handle)) != self._context.driver.node:
            raise WrongNode(
                f"volume {volume!r} is on node {node!r}, not on {self._context.driver.node!r}; all volumes of such a "
                "group must be on one node"
            )
        return Member(volume, instance, handle, MemberPlace(instance.name, node))

    # Making one

    def _make(self, plan: _Plan) -> list[tuple[Instance, Snapshot]]:
        uses = [group_freeze.use_of(one.instance.backend, one.volume, one.handle, plan.secrets) for one in plan.members]
        notes = plan.group.notes() | _consistency(uses, plan.limits)
        unclear: list[str] = []  # names of snapshots that may still be made
        with ExitStack() as undo:
            undo.callback(self._remove_failed, plan, unclear)
            mark = self._snapshot(plan, plan.members[0], plan.group.mark, notes, unclear)
            with group_freeze.frozen_together(uses, plan.limits.freeze_seconds, self._observed) as require_time:
                made = []
                for number, member in enumerate(plan.members):
                    require_time()
                    name = plan.group.member(number)
                    made.append((member.instance, self._snapshot(plan, member, name, notes, unclear)))
                require_time()
            undo.pop_all()
        idempotent.delete_snapshot(plan.owner(), mark.handle, plan.secrets)  # from now on the group exists
        log.info("a group snapshot is complete", extra={"fields": {"group": plan.group.id, "members": len(made)}})
        return made

    def _snapshot(self, plan: _Plan, member: Member, name: str, notes: Strings, unclear: list[str]) -> Snapshot:
        backend = member.backend
        context = {**filesystems.snapshot_context(backend, member.handle), **notes}
        request = SnapshotRequest(
            stamp=self._context.stamp(name, plan.digest, context=context),
            source=member.handle,
            parameters=parse(type(backend).SnapshotParameters, {}, "parameters"),
            metadata=plan.metadata,
            secrets=plan.secrets,
            deadline=plan.deadline,
        )
        try:
            snapshot = backend.create_snapshot(request)
        except (Unavailable, Timeout):
            unclear.append(name)
            raise
        if not mixed_groups.is_named(snapshot.handle, name):
            raise FailedPrecondition(
                f"volume {member.volume!r}: the handles of its backend's snapshots do not end with their requested "
                "names, so members of a group could be deleted alone; leave it out of the group"
            )
        return snapshot

    def _observed(self, volume: str) -> AbstractContextManager[None]:
        return Observer(ids.split("volume", volume)[0], self._listeners)("freeze", "group")

    def _is_pending(self, plan: _Plan) -> bool:
        """Whether a process died while it made the group. Raises AlreadyExists for a group of other volumes."""
        with suppress(NotFound):
            self._refuse_other(plan, plan.owner().find_snapshot(plan.group.mark))
            return True
        return False

    def _earlier(self, plan: _Plan) -> list[tuple[Instance, Snapshot]]:
        """Return the members of the group if an earlier request has completed it; [] when nothing has its name."""
        existing = list(self._store.existing(plan.group))
        for _, snapshot in existing:
            self._refuse_other(plan, snapshot)
        if existing and len(existing) < len(plan.members):
            raise FailedPrecondition(
                f"group snapshot {plan.name!r} exists, but only {len(existing)} of its {len(plan.members)} members do; "
                f"delete it (group_snapshot_id {plan.group.id!r}), or use another name"
            )
        return existing

    def _refuse_taken(self, name: str, instances: Sequence[Instance]) -> None:
        """Raise AlreadyExists if a group on this node has the name: the controller of a cluster asks all nodes."""
        first = f"{mixed_groups.key_of(name)}-0"
        for instance in instances:
            with suppress(NotFound):
                require(instance.backend, Snapshots, "snapshots").find_snapshot(first)
                raise AlreadyExists(f"group snapshot {name!r} exists on node {self._context.driver.node!r}")

    def _refuse_other(self, plan: _Plan, found: Snapshot) -> None:
        if found.stamp.digest != plan.digest:
            raise AlreadyExists(
                f"group snapshot {plan.name!r} exists, but its sources are other volumes; repeat the first request "
                "unchanged, or use another name"
            )

    def _remove_failed(self, plan: _Plan, unclear: list[str]) -> None:
        """Remove what a failed creation has made. Raises Unavailable when something remains: no final error then.

        The mark stays while a snapshot may still be made, so that the next try removes that one too.
        """
        try:
            self._store.remove(plan.group, plan.secrets, keep_mark=bool(unclear))
        except StorageError as error:
            raise Unavailable(f"what was made of the group cannot be removed yet: {error}; try again") from error


def _consistency(uses: Sequence[VolumeUse], limits: MixedGroupParameters) -> dict[str, str]:
    """Return the note about a group that may not be of one moment. Raises FailedPrecondition where none is wanted."""
    raw = [one.volume for one in uses if one.raw]
    if len(raw) < 2:  # the moment at which the only one is cut, while all others stand still, is that of the group
        return {}
    if limits.crash_consistency != mixed_groups.BEST_EFFORT:
        raise FailedPrecondition(
            f"volumes {', '.join(raw)} are in use as raw block devices, which nothing can suspend while the others are "
            "cut; stop what writes to all but one of them, use them with filesystems, or say crashConsistency: "
            "best-effort in the VolumeGroupSnapshotClass"
        )
    log.warning(
        "a group snapshot may not be of one moment: its raw block volumes are in use, and its class says best-effort",
        extra={"fields": {"volumes": ", ".join(raw)}},
    )
    return {mixed_groups.CONSISTENCY: mixed_groups.BEST_EFFORT}
