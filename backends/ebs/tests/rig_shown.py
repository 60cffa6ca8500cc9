"""Volumes and snapshots as XML: what moto says too, but it takes half a second for a thousand of them, not ten."""

from __future__ import annotations

from typing import Any

from . import rig_moto


def volume(each: Any) -> dict[str, object]:
    return {
        "volumeId": each.id,
        "size": each.size,
        "volumeType": each.volume_type,
        "availabilityZone": each.availability_zone,
        "createTime": rig_moto.shown_time(each.create_time),
        **attached(each),
        "encrypted": _bool(each.encrypted),
        **_given("kmsKeyId", each.kms_key_id),
        **_given("iops", each.iops),
        **_given("throughput", each.throughput),
        **_given("snapshotId", each.snapshot_id),
        **_given("sourceVolumeId", each.source_volume_id),
        **_given("volumeInitializationRate", each.volume_initialization_rate),
        **({} if each.multi_attach_enabled is None else {"multiAttachEnabled": _bool(each.multi_attach_enabled)}),
        **_given("tagSet", each.get_tags()),
    }


def attached(each: Any) -> dict[str, object]:
    """What changes of a volume when it is attached or detached."""
    return {"status": each.status, "attachmentSet": [_attachment(attachment) for attachment in each.attachments]}


def snapshot(each: Any) -> dict[str, object]:
    return {
        "snapshotId": each.id,
        "volumeId": each.volume_id,
        "volumeSize": each.volume_size,
        "status": each.status,
        "progress": each.progress,
        "startTime": rig_moto.shown_time(each.start_time),
        "ownerId": each.owner_id,
        "encrypted": _bool(each.encrypted),
        "storageTier": each.storage_tier,
        "tagSet": each.get_tags(),
        **_given("description", each.description),
        **_given("kmsKeyId", each.kms_key_id),
    }


def _attachment(each: Any) -> dict[str, object]:
    return {
        "volumeId": each.volume_id,
        "instanceId": each.instance_id,
        "device": each.device,
        "status": each.status,
        "attachTime": rig_moto.shown_time(each.attach_time),
    }


def _given(name: str, value: object) -> dict[str, object]:
    return {name: value} if value else {}


def _bool(value: object) -> str:
    return "true" if value else "false"
