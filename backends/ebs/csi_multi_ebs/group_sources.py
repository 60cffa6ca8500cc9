"""Which volumes can be cut together: those of one instance, all attached there and nowhere else.

CreateSnapshots takes an instance, and the volumes of it that are left out. One volume alone needs no instance:
CreateSnapshot cuts it, wherever it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from csi_multi.contract import Busy, FailedPrecondition, InvalidArgument, NotFound, Unavailable

from . import outposts
from .ec2_cache import DELETED_STATES, Ec2Cache
from .resources import VOLUME_ID, Ec2Instance, Ec2Snapshot, Ec2Volume, Tags

MAX_EXCLUDED = 40  # volumes that one call can leave out
REMEDY = (
    "EC2 cuts only volumes at one point in time that are attached to the same instance: run the pods that use them on "
    "one node and try again, or create a VolumeSnapshot of each"
)


@dataclass(frozen=True, slots=True)
class GroupSource:
    """The volumes to cut, and where they are."""

    volumes: tuple[str, ...]
    instance: str = ""  # "": it is a single volume
    excluded: tuple[str, ...] = ()  # other volumes of the instance, without its root volume


def find(cache: Ec2Cache, handles: Sequence[str], outpost: str) -> GroupSource:
    """Return what to cut. Raises NotFound; FailedPrecondition for volumes that EC2 cannot cut together; Busy while one
    is being attached or detached."""
    volumes = _look_up(cache, handles)
    for volume in volumes:
        outposts.refuse_snapshot_elsewhere(volume, outpost)
    if len(volumes) == 1:
        return GroupSource((volumes[0].id,))
    instance = cache.instances.get(_instance_of(volumes), cache.wait_deadline(None))
    if instance is None:
        raise Unavailable(f"EC2 does not show instance {_instance_of(volumes)!r}, which has the volumes; try again")
    return GroupSource(tuple(handles), instance.id, _others(instance, handles))


def _look_up(cache: Ec2Cache, handles: Sequence[str]) -> list[Ec2Volume]:
    """Return the volumes, which are looked up in one call where EC2 shows all of them. Raises NotFound."""
    shown = cache.volumes.many([one for one in handles if VOLUME_ID.fullmatch(one)], cache.wait_deadline(None))
    found = []
    for handle in handles:
        volume = shown.get(handle)
        if volume is None or volume.state in DELETED_STATES or cache.was_deleted(handle):
            volume = cache.volume(handle)  # it may show late
        cache.stamp("volume", volume)
        found.append(volume)
    return found


def _instance_of(volumes: Sequence[Ec2Volume]) -> str:
    """Return the instance that has all of them. Raises FailedPrecondition, Busy."""
    found: dict[str, list[str]] = {}
    for volume in volumes:
        attached = [one for one in volume.attachments if one.state != "detached"]
        if not attached:
            raise FailedPrecondition(f"volume {volume.id!r} is not attached to any instance; {REMEDY}")
        if len(attached) > 1:
            where = ", ".join(sorted(one.instance for one in attached))
            raise FailedPrecondition(f"volume {volume.id!r} is attached to several instances ({where}); {REMEDY}")
        if attached[0].state != "attached":
            raise Busy(f"volume {volume}: its attachment is changing; try again")
        found.setdefault(attached[0].instance, []).append(volume.id)
    if len(found) > 1:
        where = "; ".join(f"{instance}: {', '.join(ids)}" for instance, ids in sorted(found.items()))
        raise FailedPrecondition(f"the volumes are attached to {len(found)} instances ({where}); {REMEDY}")
    return next(iter(found))


def _others(instance: Ec2Instance, handles: Sequence[str]) -> tuple[str, ...]:
    """Return the volumes to leave out. Raises FailedPrecondition for more than EC2 can leave out."""
    root = instance.devices.get(instance.root_device, "")
    others = sorted(set(instance.devices.values()) - {root, *handles})
    if len(others) > MAX_EXCLUDED:
        raise FailedPrecondition(
            f"instance {instance.id!r} has {len(others)} other volumes, and EC2 can leave out {MAX_EXCLUDED} when it "
            "cuts a group; run the pods of the group on a node with fewer volumes, or put more volumes into the group"
        )
    return tuple(others)


def cut(cache: Ec2Cache, source: GroupSource, tags: Tags, description: str, outpost: str) -> list[Ec2Snapshot]:
    """Create the snapshots with these tags.

    EC2 refuses instances and volumes that changed since they were looked up: then it is Unavailable, because the next
    try looks again.
    """
    client = cache.client
    if not source.instance:
        return [client.create_snapshot(source.volumes[0], tags, description, outpost)]
    try:
        return client.create_snapshots(source.instance, source.excluded, tags, description, outpost)
    except NotFound as error:
        raise Unavailable(f"{error}; the volumes were attached elsewhere meanwhile; try again") from error
    except InvalidArgument as error:
        found = cache.instances.get(source.instance, cache.wait_deadline(None))
        if found is None or _others(found, source.volumes) != source.excluded:
            raise Unavailable(f"{error}; volumes were attached or detached meanwhile; try again") from error
        raise
