"""botocore's service models, reduced to the calls that this backend makes and the fields that it reads.

botocore's model of EC2 has 700 calls. The whole model costs 24 MiB, and each client 1.4 MiB and 9 ms; the reduced
one costs 0.3 MiB, and 2 ms per client, so that an instance can have a client per group of calls. Fields of a response
that are not read are skipped, which halves the time to parse it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

# The group of each call. Each group has a client with connections of its own.
CALLS = {
    "CreateVolume": "create",
    "CopyVolumes": "create",
    "DeleteVolume": "delete",
    "DeleteSnapshot": "delete",
    "AttachVolume": "attach",
    "DetachVolume": "attach",
    "ModifyVolume": "modify",
    "EnableFastSnapshotRestores": "modify",
    "LockSnapshot": "modify",
    "CreateSnapshot": "snapshot",
    "CreateTags": "tag",
    "DeleteTags": "tag",
    "DescribeAvailabilityZones": "describe",
    "DescribeInstances": "describe",
    "DescribeLockedSnapshots": "describe",
    "DescribeSnapshots": "describe",
    "DescribeVolumeStatus": "describe",
    "DescribeVolumes": "describe",
    "DescribeVolumesModifications": "describe",
    "ListServiceQuotas": "quotas",
}
SERVICES = {"quotas": "service-quotas"}  # by group, as botocore names the service; all others belong to EC2
REDUCED = ("EC2", "Service Quotas")  # the serviceId of the models that are reduced

# Fields that resources.py and capacity.py read, by shape. A shape that is not here is read whole.
READ_FIELDS = {
    "AvailabilityZone": {"ZoneName", "ZoneId", "ZoneType"},
    "EbsInstanceBlockDevice": {"VolumeId", "EbsCardIndex"},
    "Instance": {"InstanceId", "State", "InstanceType", "Placement", "OutpostArn", "BlockDeviceMappings", "Tags"},
    "InstanceBlockDeviceMapping": {"DeviceName", "Ebs"},
    "InstanceState": {"Name"},
    "LockedSnapshotsInfo": {"SnapshotId", "LockState", "LockExpiresOn"},
    "Placement": {"AvailabilityZone"},
    "Reservation": {"Instances"},
    "ServiceQuota": {"QuotaCode", "Value"},
    "Snapshot": {"SnapshotId", "VolumeId", "State", "StateMessage", "VolumeSize", "StartTime", "Tags"},
    "Volume": {
        *("VolumeId", "State", "Size", "AvailabilityZone", "VolumeType", "CreateTime", "Iops", "Throughput"),
        *("SnapshotId", "OutpostArn", "MultiAttachEnabled", "Tags", "Attachments"),
    },
    "VolumeAttachment": {"InstanceId", "Device", "State", "AttachTime"},
    "VolumeStatusInfo": {"Details"},
    "VolumeStatusItem": {"VolumeId", "VolumeStatus", "InitializationStatusDetails"},
    "VolumeModification": {
        *("VolumeId", "ModificationState", "TargetSize", "TargetVolumeType", "TargetIops", "TargetThroughput"),
        *("StatusMessage",),
    },
}

Model = dict[str, Any]


@cache
def loader() -> Any:
    """Return the loader that all sessions of this process share, so that a model is read once."""
    from botocore.loaders import JSONFileLoader, Loader

    class ReducingLoader(JSONFileLoader):  # type: ignore[misc]
        def load_file(self, file_path: str) -> Any:
            data = super().load_file(file_path)
            return reduced(data) if data and data.get("metadata", {}).get("serviceId") in REDUCED else data

    return Loader(file_loader=ReducingLoader())


def reduced(model: Model) -> Model:
    """Return a service's model with the calls of CALLS, the shapes they refer to, and without documentation."""
    calls = {name: call for name, call in model["operations"].items() if name in CALLS}
    shapes: Model = {}
    todo = list(_references(calls))
    while todo:
        if (name := todo.pop()) not in shapes:
            shapes[name] = _reduced_shape(name, model["shapes"][name])
            todo += _references(shapes[name])
    return {**model, "operations": _undocumented(calls), "shapes": _undocumented(shapes)}


def _reduced_shape(name: str, shape: Model) -> Model:
    if name not in READ_FIELDS:
        return shape
    return {**shape, "members": {key: shape["members"][key] for key in shape["members"] if key in READ_FIELDS[name]}}


def _references(part: Any) -> Iterator[str]:
    """Yield the names of the shapes that a part of the model refers to, errors in lists included."""
    for one in part if isinstance(part, list) else ():
        yield from _references(one)
    for key, value in part.items() if isinstance(part, Mapping) else ():
        if key == "shape" and isinstance(value, str):
            yield value
        else:
            yield from _references(value)


def _undocumented(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: _undocumented(value)
            for key, value in part.items()
            if key != "documentation" or isinstance(value, dict)
        }
    return part
