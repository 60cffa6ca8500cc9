"""Outposts: which one a request, a node or a volume names. EC2 names it by an ARN, which no label can hold.

The segment "outpost" has the account and the id of the Outpost: 123456789012.op-0123456789abcdef0. The rest of the ARN
follows from the region.
"""

from __future__ import annotations

import re

from csi_multi.contract import FailedPrecondition, InvalidArgument, ResourceExhausted, TopologyRequirement

from .resources import Ec2Instance, Ec2Volume

SEGMENT = "outpost"
ARN = r"arn:aws[a-z-]*:outposts:[a-z0-9-]+:[0-9]{12}:outpost/op-[0-9a-f]{8,32}"
PARTITIONS = {"cn": "aws-cn", "us-gov": "aws-us-gov"}  # by the beginning of the region; all others: aws

_ARN = re.compile(r"arn:aws[a-z-]*:outposts:(?P<region>[^:]+):(?P<account>[0-9]{12}):outpost/(?P<id>op-[0-9a-f]+)")
_SEGMENT = re.compile(r"(?P<account>[0-9]{12})\.(?P<id>op-[0-9a-f]{8,32})")


def segment(arn: str) -> dict[str, str]:
    """Return the segment of a node or a volume on this Outpost; empty for "", which is none."""
    found = _ARN.fullmatch(arn)
    return {SEGMENT: f"{found['account']}.{found['id']}"} if found else {}


def requested(topology: TopologyRequirement | None, region: str) -> dict[str, str]:
    """Return the ARN by the name of the zone, for zones whose first topology names an Outpost.

    Raises InvalidArgument for a segment that names none.
    """
    return {zone: arn for zone, arn in _by_zone(topology, region).items() if arn}


def _by_zone(topology: TopologyRequirement | None, region: str) -> dict[str, str]:
    """Return the ARN, "" for the region, by the name of each requested zone."""
    found: dict[str, str] = {}
    for one in topology.candidates if topology else ():
        if "zone" in one:
            found.setdefault(one["zone"], _arn(one[SEGMENT], region) if SEGMENT in one else "")
        elif SEGMENT in one:
            raise InvalidArgument(
                f"accessibility_requirements: {SEGMENT!r} needs the zone of the Outpost beside it; add the zone"
            )
    return found


def refuse_elsewhere(volume: Ec2Volume, instance: Ec2Instance) -> None:
    """Raise FailedPrecondition unless volume and instance are both in the region, or on the same Outpost."""
    if volume.outpost != instance.outpost:
        raise FailedPrecondition(
            f"volume {volume.id!r} is {_where(volume.outpost)}, and instance {instance.id!r} "
            f"{_where(instance.outpost)}: a volume can only be attached where it is; run the pod there"
        )


def refuse_copy_elsewhere(source: Ec2Volume, topology: TopologyRequirement | None, region: str) -> None:
    """Raise ResourceExhausted for a copy of a volume that is to be in its zone, but on another Outpost or on none."""
    if (arn := _by_zone(topology, region).get(source.zone, source.outpost)) != source.outpost:
        raise ResourceExhausted(
            f"EC2 copies a volume only where it is: {source.id!r} is {_where(source.outpost)}, and the copy is to be "
            f"{_where(arn)}; restore a snapshot of it instead"
        )


def refuse_snapshot_elsewhere(volume: Ec2Volume, arn: str) -> None:
    """Raise InvalidArgument for a snapshot that is to be kept on another Outpost than its volume's."""
    if arn and arn != volume.outpost:
        raise InvalidArgument(
            f"parameters: 'outpostArn': volume {volume.id!r} is {_where(volume.outpost)}, so its snapshots cannot be "
            f"kept {_where(arn)}; use a VolumeSnapshotClass without outpostArn, or with that of the volume"
        )


def _where(arn: str) -> str:
    return f"on Outpost {arn}" if arn else "in the region"


def _arn(value: str, region: str) -> str:
    found = _SEGMENT.fullmatch(value)
    if not found:
        raise InvalidArgument(
            f"accessibility_requirements: {SEGMENT!r} is {value!r}; it is the account and the id of an Outpost, such "
            "as 123456789012.op-0123456789abcdef0"
        )
    partition = next((name for start, name in PARTITIONS.items() if region.startswith(f"{start}-")), "aws")
    return f"arn:{partition}:outposts:{region}:{found['account']}:outpost/{found['id']}"
