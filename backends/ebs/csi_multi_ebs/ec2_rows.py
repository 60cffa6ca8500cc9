"""EC2's answers, as botocore parses them -> rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .rows import Attachment, InstanceRow, ModificationRow, SnapshotRow, Tags, VolumeRow

Answer = Mapping[str, Any]


def volume(told: Answer) -> VolumeRow:
    return VolumeRow(
        id=told["VolumeId"],
        state=told["State"],
        size=told["Size"],
        zone=told["AvailabilityZone"],
        type=told["VolumeType"],
        created=told["CreateTime"],
        iops=told.get("Iops") or 0,
        throughput=told.get("Throughput") or 0,
        snapshot=told.get("SnapshotId") or "",
        multi_attach=told.get("MultiAttachEnabled", False),
        tags=_tags(told),
        attachments=tuple(attachment(one) for one in told.get("Attachments", ())),
    )


def attachment(told: Answer) -> Attachment:
    return Attachment(
        instance=told.get("InstanceId") or "",
        device=told.get("Device") or "",
        state=told["State"],
        since=told.get("AttachTime"),
    )


def snapshot(told: Answer) -> SnapshotRow:
    return SnapshotRow(
        id=told["SnapshotId"],
        volume=told.get("VolumeId") or "",
        state=told["State"],
        size=told["VolumeSize"],
        created=told["StartTime"],
        tags=_tags(told),
        message=told.get("StateMessage") or "",
    )


def instance(told: Answer) -> InstanceRow:
    devices = {one["DeviceName"]: one["Ebs"]["VolumeId"] for one in told.get("BlockDeviceMappings", ()) if "Ebs" in one}
    return InstanceRow(
        id=told["InstanceId"],
        state=told["State"]["Name"],
        type=told["InstanceType"],
        zone=told["Placement"]["AvailabilityZone"],
        devices=devices,
        tags=_tags(told),
    )


def modification(told: Answer) -> ModificationRow:
    return ModificationRow(
        volume=told["VolumeId"],
        state=told["ModificationState"],
        size=told["TargetSize"],
        type=told["TargetVolumeType"],
        iops=told.get("TargetIops") or 0,
        throughput=told.get("TargetThroughput") or 0,
        message=told.get("StatusMessage") or "",
    )


def _tags(told: Answer) -> Tags:
    return {tag["Key"]: tag["Value"] for tag in told.get("Tags", ())}
