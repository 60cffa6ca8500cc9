"""EC2's volumes, snapshots, instances and modifications as typed values, read from botocore's responses.

Sizes are in GiB, as EC2 counts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

GIB = 2**30

Tags = Mapping[str, str]
Response = Mapping[str, Any]

# Ids have eight hexadecimal digits; since 2016 they have seventeen.
VOLUME_ID = re.compile(r"vol-[0-9a-f]{8}(?:[0-9a-f]{9})?")
SNAPSHOT_ID = re.compile(r"snap-[0-9a-f]{8}(?:[0-9a-f]{9})?")
GROUP_ID = re.compile(r"sgrp-[0-9a-f]{17}")  # the driver's own: EC2 has no groups
INSTANCE_ID = re.compile(r"i-[0-9a-f]{8}(?:[0-9a-f]{9})?")
DETACHING_STATES = ("detaching", "busy")  # of an attachment


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Zone:
    """A zone of the region. Its name may mean another zone in another account; its id means the same in all."""

    id: str
    kind: str  # availability-zone, local-zone, wavelength-zone

    @classmethod
    def read(cls, response: Response) -> Ec2Zone:
        return cls(id=response.get("ZoneId") or "", kind=response.get("ZoneType") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Attachment:
    """The attachment of a volume to one instance, also while it is being attached or detached."""

    instance: str
    device: str  # the device name that AttachVolume was called with, for example /dev/xvdba
    state: str  # attaching, attached, detaching, detached, busy
    since: datetime | None = None  # when AttachVolume was called

    @classmethod
    def read(cls, response: Response) -> Ec2Attachment:
        return cls(
            instance=response.get("InstanceId") or "",
            device=response.get("Device") or "",
            state=response["State"],
            since=response.get("AttachTime"),
        )

    def age(self) -> float:
        """Return for how many seconds it exists, 0 when EC2 does not say since when."""
        return (datetime.now(UTC) - self.since).total_seconds() if self.since else 0.0

    @property
    def description(self) -> str:
        """What tells this attachment from every other of the volume; "" when EC2 does not say since when it exists."""
        return f"{self.instance} {self.device} {self.since.isoformat()}" if self.since else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Volume:
    id: str
    state: str  # creating, available, in-use, deleting, deleted, error
    size: int
    zone: str
    type: str
    created: datetime
    iops: int = 0  # 0: the type has none
    throughput: int = 0  # MiB/s; 0: the type has none
    snapshot: str = ""  # the snapshot it was created from
    outpost: str = ""  # ARN; "": in the region
    multi_attach: bool = False
    tags: Tags = field(default_factory=dict)
    attachments: tuple[Ec2Attachment, ...] = ()

    def __str__(self) -> str:
        """The state for error messages."""
        attachments = [f"{one.instance} as {one.device} ({one.state})" for one in self.attachments]
        return f"{self.id} {self.state}" + (f", on {' and '.join(attachments)}" if attachments else "")

    @classmethod
    def read(cls, response: Response) -> Ec2Volume:
        return cls(
            id=response["VolumeId"],
            state=response["State"],
            size=response["Size"],
            zone=response["AvailabilityZone"],
            type=response["VolumeType"],
            created=response["CreateTime"],
            iops=response.get("Iops") or 0,
            throughput=response.get("Throughput") or 0,
            snapshot=response.get("SnapshotId") or "",
            outpost=response.get("OutpostArn") or "",
            multi_attach=response.get("MultiAttachEnabled", False),
            tags=_read_tags(response),
            attachments=tuple(Ec2Attachment.read(one) for one in response.get("Attachments", ())),
        )

    def attachment_to(self, instance: str) -> Ec2Attachment | None:
        """Return the attachment to the instance, None when there is none or it is detached."""
        current = (one for one in self.attachments if one.instance == instance and one.state != "detached")
        return next(current, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Snapshot:
    id: str
    volume: str
    state: str  # pending, completed, error, recoverable, recovering
    size: int
    created: datetime
    tags: Tags = field(default_factory=dict)
    message: str = ""

    @classmethod
    def read(cls, response: Response) -> Ec2Snapshot:
        return cls(
            id=response["SnapshotId"],
            volume=response.get("VolumeId") or "",
            state=response["State"],
            size=response["VolumeSize"],
            created=response["StartTime"],
            tags=_read_tags(response),
            message=response.get("StateMessage") or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLock:
    """A lock as a class asks for it: either for some days or until a date."""

    mode: str  # governance, compliance
    days: int | None = None
    until: datetime | None = None
    cool_off_hours: int | None = None  # for which a compliance lock can still be changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2SnapshotLock:
    """The lock that a snapshot has, or had."""

    state: str  # governance, compliance-cooloff, compliance, expired
    expires: datetime | None = None  # None: its duration has not begun

    @classmethod
    def read(cls, response: Response) -> Ec2SnapshotLock:
        return cls(state=response["LockState"], expires=response.get("LockExpiresOn"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Instance:
    id: str
    state: str  # pending, running, shutting-down, terminated, stopping, stopped
    type: str
    zone: str
    outpost: str = ""  # ARN; "": in the region
    devices: Mapping[str, str] = field(default_factory=dict)  # volume id by device name
    root_device: str = ""  # the device name of the volume it boots from
    cards: Mapping[str, int] = field(default_factory=dict)  # EBS card by device name, where there are several
    tags: Tags = field(default_factory=dict)

    @classmethod
    def read(cls, response: Response) -> Ec2Instance:
        disks = [(one["DeviceName"], one["Ebs"]) for one in response.get("BlockDeviceMappings", ()) if "Ebs" in one]
        return cls(
            id=response["InstanceId"],
            state=response["State"]["Name"],
            type=response["InstanceType"],
            zone=response["Placement"]["AvailabilityZone"],
            outpost=response.get("OutpostArn") or "",
            devices={name: disk["VolumeId"] for name, disk in disks},
            root_device=response.get("RootDeviceName") or "",
            cards={name: disk["EbsCardIndex"] for name, disk in disks if "EbsCardIndex" in disk},
            tags=_read_tags(response),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Modification:
    """The last change of a volume's size, type or performance."""

    volume: str
    state: str  # modifying, optimizing, completed, failed
    size: int
    type: str
    iops: int = 0
    throughput: int = 0
    message: str = ""

    def __str__(self) -> str:
        """The state for error messages."""
        return f"change to {self.size} GiB of type {self.type} {self.state}"

    @classmethod
    def read(cls, response: Response) -> Ec2Modification:
        return cls(
            volume=response["VolumeId"],
            state=response["ModificationState"],
            size=response["TargetSize"],
            type=response["TargetVolumeType"],
            iops=response.get("TargetIops") or 0,
            throughput=response.get("TargetThroughput") or 0,
            message=response.get("StatusMessage") or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Initialization:
    """How far EC2 has loaded a volume from its snapshot or source."""

    done: bool
    percent: int | None = None  # None: not known
    seconds: int | None = None  # until it is done; known only with an initialization rate

    def __str__(self) -> str:
        """The progress for error messages."""
        percent = "" if self.percent is None else f"{self.percent} %"
        seconds = "" if self.seconds is None else f"about {self.seconds} seconds left"
        return ", ".join(filter(None, (percent, seconds))) or "progress unknown"

    @classmethod
    def read(cls, response: Response) -> Ec2Initialization:
        """Read an item of DescribeVolumeStatus. A volume of which it says nothing has nothing to load."""
        details = response.get("VolumeStatus", {}).get("Details", ())
        states = [one.get("Status") for one in details if one.get("Name") == "initialization-state"]
        progress = response.get("InitializationStatusDetails", {})
        return cls(
            done="initializing" not in states,
            percent=progress.get("Progress"),
            seconds=progress.get("EstimatedTimeToCompleteInSeconds"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2VolumeStatus:
    """The result of EC2's checks of a volume."""

    volume: str
    status: str  # ok, warning, impaired, insufficient-data
    checks: Mapping[str, str] = field(default_factory=dict)  # io-enabled: passed, failed; io-performance: normal, ...
    events: tuple[str, ...] = ()  # what EC2 says about the causes

    @classmethod
    def read(cls, response: Response) -> Ec2VolumeStatus:
        status = response.get("VolumeStatus", {})
        return cls(
            volume=response["VolumeId"],
            status=status.get("Status") or "",
            checks={one["Name"]: one.get("Status") or "" for one in status.get("Details", ()) if "Name" in one},
            events=tuple(
                f"{one.get('EventType') or 'event'}: {one.get('Description') or 'no description'}"
                for one in response.get("Events", ())
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPage:
    """A page of the blocks of a snapshot, by their number, in order."""

    blocks: tuple[int, ...]
    block_size: int
    token: str  # of the next page; "": this is the last one

    @classmethod
    def read(cls, response: Response, items: str) -> BlockPage:
        """`items` is what the call names its list of blocks."""
        return cls(
            blocks=tuple(one["BlockIndex"] for one in response.get(items, ())),
            block_size=response["BlockSize"],
            token=response.get("NextToken") or "",
        )


def _read_tags(response: Response) -> Tags:
    return {tag["Key"]: tag["Value"] for tag in response.get("Tags", ())}
