"""What EC2 says about volumes, snapshots, instances and zones, as typed rows, and what their ids look like.

Sizes are GiB, as EC2 counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

Tags = Mapping[str, str]

# Ids: of eight hexadecimal digits once, of seventeen since 2016.
VOLUME = re.compile(r"vol-[0-9a-f]{8}(?:[0-9a-f]{9})?")
SNAPSHOT = re.compile(r"snap-[0-9a-f]{8}(?:[0-9a-f]{9})?")
INSTANCE = re.compile(r"i-[0-9a-f]{8}(?:[0-9a-f]{9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Where a volume is attached, or on its way to or from there."""

    instance: str
    device: str  # its name as EC2 was told, for example /dev/xvdba
    state: str  # attaching, attached, detaching, detached, busy
    since: datetime | None = None  # when it was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRow:
    id: str
    state: str  # creating, available, in-use, deleting, deleted, error
    size: int
    zone: str
    type: str
    created: datetime
    iops: int = 0  # 0: the type has none
    throughput: int = 0  # MiB/s; 0: the type has none
    snapshot: str = ""  # made from
    multi_attach: bool = False
    tags: Tags = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    id: str
    volume: str
    state: str  # pending, completed, error, recoverable, recovering
    size: int
    created: datetime
    tags: Tags = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRow:
    id: str
    state: str  # pending, running, shutting-down, terminated, stopping, stopped
    type: str
    zone: str
    devices: Mapping[str, str] = field(default_factory=dict)  # device name -> volume id
    tags: Tags = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModificationRow:
    """The last change of a volume's size, type or performance."""

    volume: str
    state: str  # modifying, optimizing, completed, failed
    size: int
    type: str
    iops: int = 0
    throughput: int = 0
    message: str = ""
