"""Which calls we make of EC2 and Service Quotas, what we read of the answers, and a description of that for botocore.

botocore's description of EC2 has 700 calls. Kept whole it costs 24 MiB, and each client 1.4 MiB and 9 ms;
with ours alone it is 0.3 MiB and 2 ms a client, so that an instance can have one per group of calls. What an
answer says beside what we read is skipped, which takes half of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

# By the service's name, with the client that makes it. botocore paces by client: where EC2 throttles creations,
# attachments must not wait.
CALLS = {
    "CreateVolume": "create",
    "CopyVolumes": "create",
    "DeleteVolume": "delete",
    "DeleteSnapshot": "delete",
    "AttachVolume": "attach",
    "DetachVolume": "attach",
    "ModifyVolume": "modify",
    "EnableFastSnapshotRestores": "modify",
    "CreateSnapshot": "snapshot",
    "CreateTags": "tag",
    "DeleteTags": "tag",
    "DescribeAvailabilityZones": "describe",
    "DescribeInstances": "describe",
    "DescribeSnapshots": "describe",
    "DescribeVolumes": "describe",
    "DescribeVolumesModifications": "describe",
    "ListServiceQuotas": "quotas",
}
SERVICES = {"quotas": "service-quotas"}  # by client, as botocore names them; all others are EC2's
OURS = ("EC2", "Service Quotas")  # as their descriptions name them

# By the name of the thing, as ec2_rows.py and capacity.py read it. A thing that is not here is read whole.
READ = {
    "AvailabilityZone": {"ZoneName", "ZoneType"},
    "EbsInstanceBlockDevice": {"VolumeId"},
    "Instance": {"InstanceId", "State", "InstanceType", "Placement", "BlockDeviceMappings", "Tags"},
    "InstanceBlockDeviceMapping": {"DeviceName", "Ebs"},
    "InstanceState": {"Name"},
    "Placement": {"AvailabilityZone"},
    "Reservation": {"Instances"},
    "ServiceQuota": {"QuotaCode", "Value"},
    "Snapshot": {"SnapshotId", "VolumeId", "State", "StateMessage", "VolumeSize", "StartTime", "Tags"},
    "Volume": {
        *("VolumeId", "State", "Size", "AvailabilityZone", "VolumeType", "CreateTime", "Iops", "Throughput"),
        *("SnapshotId", "MultiAttachEnabled", "Tags", "Attachments"),
    },
    "VolumeAttachment": {"InstanceId", "Device", "State", "AttachTime"},
    "VolumeModification": {
        *("VolumeId", "ModificationState", "TargetSize", "TargetVolumeType", "TargetIops", "TargetThroughput"),
        *("StatusMessage",),
    },
}

Model = dict[str, Any]


@cache
def loader() -> Any:
    """Return the one loader of all sessions of this process, so that a description is read once."""
    from botocore.loaders import JSONFileLoader, Loader

    class Lean(JSONFileLoader):  # type: ignore[misc]
        def load_file(self, file_path: str) -> Any:
            data = super().load_file(file_path)
            return pruned(data) if data and data.get("metadata", {}).get("serviceId") in OURS else data

    return Loader(file_loader=Lean())


def pruned(model: Model) -> Model:
    """Return a service's description with our calls and what they refer to, and without explanations."""
    calls = {name: call for name, call in model["operations"].items() if name in CALLS}
    shapes: Model = {}
    todo = list(_references(calls))
    while todo:
        if (name := todo.pop()) not in shapes:
            shapes[name] = _read(name, model["shapes"][name])
            todo += _references(shapes[name])
    return {**model, "operations": _plain(calls), "shapes": _plain(shapes)}


def _read(name: str, shape: Model) -> Model:
    if name not in READ:
        return shape
    return {**shape, "members": {key: shape["members"][key] for key in shape["members"] if key in READ[name]}}


def _references(part: Any) -> Iterator[str]:
    """Yield the names of the shapes that a part refers to, errors in lists included."""
    for one in part if isinstance(part, list) else ():
        yield from _references(one)
    for key, value in part.items() if isinstance(part, Mapping) else ():
        if key == "shape" and isinstance(value, str):
            yield value
        else:
            yield from _references(value)


def _plain(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _plain(value) for key, value in part.items() if key != "documentation" or isinstance(value, dict)}
    return part
