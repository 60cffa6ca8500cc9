"""Snapshots: EC2's checks, locks, and fast restores, which are only recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from . import fake_ec2_moto as moto
from .fake_ec2_calls import Answer, Call, Refusal, answer
from .fake_ec2_describes import SNAPSHOTS, absent, snapshot_fields
from .fake_ec2_volumes import check_tags, volume_of

if TYPE_CHECKING:
    from .fake_ec2_service import Service

MOST_EXCLUDED = 40


def create(cloud: Service, call: Call) -> Answer:
    check_tags(call)
    volume = volume_of(call)
    if volume.phase:
        raise Refusal("IncorrectState", f"The volume '{volume.id}' is in the '{volume.phase}' state.")
    if (outpost := call.get("OutpostArn")) and outpost != volume.outpost_arn:
        raise Refusal("InvalidParameterValue", f"The volume '{volume.id}' is not on Outpost {outpost}.")
    done = moto.ask(call)
    moto.born[-1].outpost_arn = outpost or None
    return done


def create_many(cloud: Service, call: Call) -> Answer:
    """CreateSnapshots: of all volumes of an instance but those that are left out, all of one time."""
    check_tags(call)
    place, id = moto.store(call), call.get("InstanceSpecification.InstanceId")
    instance = next((one for one in place.all_instances() if one.id == id), None)
    if instance is None or instance._state.name == "terminated":
        raise Refusal("InvalidInstanceID.NotFound", f"The instance ID '{id}' does not exist")
    excluded = set(call.many("InstanceSpecification.ExcludeDataVolumeId"))
    if len(excluded) > MOST_EXCLUDED:
        raise Refusal("InvalidParameterValue", f"At most {MOST_EXCLUDED} volumes can be excluded.")
    held = [volume for volume in place.volumes.values() if id in volume.held]
    data = [volume for volume in held if not volume.root]
    if unknown := excluded - {volume.id for volume in data}:
        raise Refusal("InvalidParameterValue", f"Volumes {sorted(unknown)} are not data volumes of '{id}'.")
    chosen = [volume for volume in data if volume.id not in excluded]
    if call.get("InstanceSpecification.ExcludeBootVolume") != "true":
        chosen += [volume for volume in held if volume.root]
    if (outpost := call.get("OutpostArn")) and any(volume.outpost_arn != outpost for volume in chosen):
        raise Refusal("InvalidParameterValue", f"The instance '{id}' is not on Outpost {outpost}.")
    if not chosen:
        raise Refusal("InvalidParameterValue", f"The instance '{id}' has no volumes to be snapshotted.")
    made = [place.create_snapshot(volume.id, call.get("Description")) for volume in chosen]
    for one in made:
        one.start_time, one.outpost_arn = made[0].start_time, outpost or None
        one.add_tags(dict(call.tags()))
    shown = [snapshot_fields(one) for one in made]
    for fields in shown:
        fields["state"] = fields.pop("status")
    return answer("CreateSnapshots", {"snapshotSet": shown})


def delete(cloud: Service, call: Call) -> Answer:
    place, id = moto.store(call), call.get("SnapshotId")
    snapshot = place.snapshots.get(id)
    if not snapshot:
        raise Refusal(SNAPSHOTS.missing, absent(SNAPSHOTS, [id]))
    if cloud.locks.get(id, {"lockState": "expired"})["lockState"] != "expired":
        raise Refusal("OperationNotPermitted", f"The snapshot '{id}' cannot be deleted.")
    done = moto.ask(call)
    if id not in place.snapshots:
        cloud.describes.show_deleted(place, snapshot, SNAPSHOTS, cloud.takes.vanishing)
    return done


def lock(cloud: Service, call: Call) -> Answer:
    """LockSnapshot, by the rules that its documentation has."""
    id, mode = call.get("SnapshotId"), call.get("LockMode")
    days, until, cool_off = call.get("LockDuration"), call.get("ExpirationDate"), call.get("CoolOffPeriod")
    if id not in moto.store(call).snapshots:
        raise Refusal(SNAPSHOTS.missing, absent(SNAPSHOTS, [id]))
    if bool(days) == bool(until) or (cool_off and mode != "compliance"):
        raise Refusal("InvalidParameterCombination", f"These parameters exclude each other: {sorted(call.params)}")
    if cloud.locks.get(id, {}).get("lockState") == "compliance":
        raise Refusal("OperationNotPermitted", f"The lock of snapshot '{id}' cannot be changed.")
    ends = until or (datetime.now(UTC) + timedelta(days=int(days))).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    state = "compliance-cooloff" if cool_off else mode
    cloud.locks[id] = {"snapshotId": id, "lockState": state, "lockExpiresOn": ends}
    return answer("LockSnapshot", cloud.locks[id])


def describe_locked(cloud: Service, call: Call) -> Answer:
    found = [cloud.locks[id] for id in call.many("SnapshotId") if id in cloud.locks]
    return answer("DescribeLockedSnapshots", {"snapshotSet": found})


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
