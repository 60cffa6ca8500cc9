"""Snapshots: EC2's checks, and fast restores, which are only recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import fake_ec2_moto as moto
from .fake_ec2_calls import Answer, Call, Refusal, answer
from .fake_ec2_describes import SNAPSHOTS, absent
from .fake_ec2_volumes import check_tags, volume_of

if TYPE_CHECKING:
    from .fake_ec2_service import Service


def create(cloud: Service, call: Call) -> Answer:
    check_tags(call)
    volume = volume_of(call)
    if volume.phase:
        raise Refusal("IncorrectState", f"The volume '{volume.id}' is in the '{volume.phase}' state.")
    return moto.ask(call)


def delete(cloud: Service, call: Call) -> Answer:
    place, id = moto.store(call), call.get("SnapshotId")
    snapshot = place.snapshots.get(id)
    if not snapshot:
        raise Refusal(SNAPSHOTS.missing, absent(SNAPSHOTS, [id]))
    done = moto.ask(call)
    if id not in place.snapshots:
        cloud.describes.show_deleted(place, snapshot, SNAPSHOTS, cloud.takes.vanishing)
    return done


def enable_fast_restores(cloud: Service, call: Call) -> Answer:
    good, bad = [], []
    zones = call.many("AvailabilityZone")
    for id in call.many("SourceSnapshotId"):
        if id in moto.store(call).snapshots:
            cloud.fast_restores.setdefault(id, set()).update(zones)
            good += [{"snapshotId": id, "availabilityZone": zone, "state": "enabling"} for zone in zones]
        else:
            error = {"code": SNAPSHOTS.missing, "message": absent(SNAPSHOTS, [id])}
            errors = [{"availabilityZone": zone, "error": error} for zone in zones]
            bad.append({"snapshotId": id, "fastSnapshotRestoreStateErrorSet": errors})
    return answer("EnableFastSnapshotRestores", {"successful": good, "unsuccessful": bad})
