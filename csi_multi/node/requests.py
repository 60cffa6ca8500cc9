"""The node engine's requests and answers, free of protobuf."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..contract.model import Capability, Strings
from .mkfs_options import DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """NodeStageVolume: make the volume usable on this node at `staging`, a directory the caller has created."""

    handle: str
    staging: Path
    capability: Capability
    default_fs_type: str = DEFAULT  # where the capability names none: of a blank device, or what it should hold
    volume_context: Strings = field(default_factory=dict)
    publish_context: Strings = field(default_factory=dict)
    secrets: Strings = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """NodePublishVolume: mount the staged volume at `target`, whose parent exists."""

    handle: str
    staging: Path
    target: Path
    capability: Capability
    read_only: bool = False
    secrets: Strings = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes or inodes of a volume; `used` and `available` are None for raw block volumes."""

    unit: str  # "bytes" or "inodes"
    total: int
    used: int | None = None
    available: int | None = None
