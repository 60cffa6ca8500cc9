"""botocore's service models, reduced to the calls that this backend makes and the fields that it reads.

botocore's model of EC2 has 700 calls. The whole model costs 24 MiB, and each client 1.4 MiB and 9 ms; the reduced
one costs 0.3 MiB, and 2 ms per client. Fields of a response that are not read are skipped, which halves the time to
parse it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Raw
from msgspec.json import decode

# The group of each call. Each group has a client.
CALLS = {
    "CreateVolume": "ec2",
    "CopyVolumes": "ec2",
    "DeleteVolume": "ec2",
    "DeleteSnapshot": "ec2",
    "AttachVolume": "ec2",
    "DetachVolume": "ec2",
    "ModifyVolume": "ec2",
    "EnableFastSnapshotRestores": "ec2",
    "LockSnapshot": "ec2",
    "CreateSnapshot": "ec2",
    "CreateSnapshots": "ec2",
    "CreateTags": "ec2",
    "DeleteTags": "ec2",
    "DescribeAvailabilityZones": "ec2",
    "DescribeInstances": "ec2",
    "DescribeInstanceStatus": "ec2",
    "DescribeLockedSnapshots": "ec2",
    "DescribeSnapshots": "ec2",
    "DescribeVolumeStatus": "ec2",
    "DescribeVolumes": "ec2",
    "DescribeVolumesModifications": "ec2",
    "ListServiceQuotas": "quotas",
    "ListChangedBlocks": "blocks",
    "ListSnapshotBlocks": "blocks",
}
SERVICES = {
    "quotas": "service-quotas",
    "blocks": "ebs",
}  # by group, as botocore names the service; all others belong to EC2
REDUCED = ("EC2", "Service Quotas", "EBS")  # the serviceId of the models that are reduced

# Fields that resources.py and capacity.py read, by shape. A shape that is not here is read whole.
READ_FIELDS = {
    "AvailabilityZone": {"ZoneName", "ZoneId", "ZoneType"},
    "Block": {"BlockIndex"},
    "ChangedBlock": {"BlockIndex"},
    "EbsInstanceBlockDevice": {"VolumeId", "EbsCardIndex"},
    "EbsStatusSummary": {"Status"},
    "Instance": {
        *("InstanceId", "State", "InstanceType", "Placement", "OutpostArn", "BlockDeviceMappings", "RootDeviceName"),
        "Tags",
    },
    "InstanceBlockDeviceMapping": {"DeviceName", "Ebs"},
    "InstanceState": {"Name"},
    "InstanceStatus": {"InstanceId", "AttachedEbsStatus"},
    "ListChangedBlocksResponse": {"ChangedBlocks", "BlockSize", "NextToken"},
    "ListSnapshotBlocksResponse": {"Blocks", "BlockSize", "NextToken"},
    "LockedSnapshotsInfo": {"SnapshotId", "LockState", "LockExpiresOn"},
    "Placement": {"AvailabilityZone"},
    "Reservation": {"Instances"},
    "ServiceQuota": {"QuotaCode", "Value"},
    "Snapshot": {"SnapshotId", "VolumeId", "State", "StateMessage", "VolumeSize", "StartTime", "Tags"},
    "SnapshotInfo": {"SnapshotId", "VolumeId", "State", "VolumeSize", "StartTime", "Tags"},
    "Volume": {
        *("VolumeId", "State", "Size", "AvailabilityZone", "VolumeType", "CreateTime", "Iops", "Throughput"),
        *("SnapshotId", "OutpostArn", "MultiAttachEnabled", "Tags", "Attachments"),
    },
    "VolumeAttachment": {"InstanceId", "Device", "State", "AttachTime"},
    "VolumeStatusEvent": {"EventType", "Description"},
    "VolumeStatusInfo": {"Status", "Details"},
    "VolumeStatusItem": {"VolumeId", "VolumeStatus", "Events", "InitializationStatusDetails"},
    "VolumeModification": {
        *("VolumeId", "ModificationState", "TargetSize", "TargetVolumeType", "TargetIops", "TargetThroughput"),
        *("StatusMessage",),
    },
}

# Services of which botocore is told the endpoints, by their names in its file: those that are called, and those that
# credentials may come from. Others would be at the usual places.
ENDPOINTS = frozenset({"ec2", "ebs", "servicequotas", "sts", "sso", "portal.sso", "oidc", "signin"})

Model = dict[str, Any]


@cache
def loader() -> Any:
    """Return the loader that all sessions of this process share, so that a model is read once."""
    from botocore.loaders import JSONFileLoader, Loader

    class ReducingLoader(JSONFileLoader):  # type: ignore[misc]
        def _load_file(self, full_path: str, open_method: Any) -> Any:
            if (
                Path(full_path).name.partition(".")[0] not in ("service-2", "endpoints")
                or not Path(full_path).is_file()
            ):
                return super()._load_file(full_path, open_method)
            with open_method(full_path, "rb") as file:
                return read(file.read())

    return Loader(file_loader=ReducingLoader())


def read(text: bytes) -> Model:
    """Read a file of botocore. What is left out is not read at all, which would take 20 MiB for a moment."""
    parts: Mapping[str, Raw] = decode(text, type=dict[str, Raw])
    if "partitions" in parts:
        partitions = decode(parts["partitions"], type=list[dict[str, Raw]])
        return {**_read_all(parts, "partitions"), "partitions": [_partition(one) for one in partitions]}
    metadata = decode(parts["metadata"]) if "metadata" in parts else {}
    if metadata.get("serviceId") not in REDUCED:
        return _read_all(parts)
    operations = decode(parts["operations"], type=dict[str, Raw])
    calls = _read_all({name: operations[name] for name in operations.keys() & CALLS.keys()})
    shapes = _Shapes(decode(parts["shapes"], type=dict[str, Raw]))
    return reduced({**_read_all(parts, "operations", "shapes"), "operations": calls, "shapes": shapes})


class _Shapes:
    """Shapes by name, each read when it is needed."""

    def __init__(self, texts: Mapping[str, Raw]) -> None:
        self._texts = texts

    def __getitem__(self, name: str) -> Model:
        shape: Model = decode(self._texts[name])
        return shape


def _partition(parts: Mapping[str, Raw]) -> Model:
    services = decode(parts["services"], type=dict[str, Raw])
    kept = _read_all({name: services[name] for name in services.keys() & ENDPOINTS})
    return {**_read_all(parts, "services"), "services": kept}


def _read_all(parts: Mapping[str, Raw], *but: str) -> Model:
    return {name: decode(part) for name, part in parts.items() if name not in but}


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
