"""How many EBS volumes can be attached to an instance, by its type and by what else uses its attachments.

The numbers are those of "Amazon EBS volume limits for Amazon EC2 instances" in the EC2 user guide, and of
DescribeInstanceTypes (EbsInfo: MaximumEbsAttachments, AttachmentLimitType), which a node is not allowed to call. For
a type that is not known yet the lower of two numbers is assumed: a pod that waits for a node is better than one that
waits for its volume on a full node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .config import Config
from .device_names import WRITABLE
from .instance_metadata import InstanceMetadata

# Types with several EBS cards, each with bandwidth of its own (EbsInfo: MaximumEbsCards). EC2 limits the volumes of the
# instance, not those of a card. A type that is not here has one card, or its volumes are all attached to the first.
CARDS = ((r"([cmr]8g[bn]\.(48xlarge|metal-48xl)|(c8i|[mr]8id?)[bn]\.(96xlarge|metal-96xl)|g7\.48xlarge)", 2),)
ROOT = 1  # the root volume of every instance


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentLimit:
    """`most` attachments, the root volume included, and what else uses them."""

    most: int
    interfaces: bool = False
    disks: bool = False  # local NVMe disks and accelerators


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherAttachments:
    """What uses attachments of an instance beside the volumes of this driver."""

    interfaces: int = 1
    disks: int = 0  # local NVMe disks (instance store)
    volumes: int = 0  # attached at launch, beside the root


def _metal(most: int) -> AttachmentLimit:
    """Return the limit of an instance that can have so many volumes with one network interface."""
    return AttachmentLimit(most=most + 1, interfaces=True)


SHARED = AttachmentLimit(most=28, interfaces=True, disks=True)
# The first pattern that matches the whole type counts.
KNOWN_TYPES: tuple[tuple[str, AttachmentLimit], ...] = (
    (r"mac-m4(pro)?\.metal", _metal(31)),
    (r"mac1\.metal", _metal(16)),
    (r"mac.*\.metal", _metal(10)),
    (r"u-[0-9]+tb1\.metal", _metal(19)),
    (r".*\.metal", _metal(31)),
    # Attachments for volumes alone, although DescribeInstanceTypes says of many of them that they are shared.
    (r"([cmr]8a\.metal-24xl|(m8azn|x8aedz)\.metal-12xl|[cmrx]8i.*\.metal-48xl)", AttachmentLimit(most=64)),
    (r"[cmr]8[a-z]*[bn]\.metal-(48|96)xl", AttachmentLimit(most=78)),
    (r"(.*\.metal-(48|96)xl|(m8azn|x8aedz)\.metal-24xl|r7iz\.metal-32xl)", AttachmentLimit(most=79)),
    (r".*\.metal-.*", AttachmentLimit(most=39)),
    (r"(c[13]|m[123]|r3|t1)\..*", AttachmentLimit(most=39)),
    # With more volumes Linux on Xen may not boot.
    (r"(c4|cc2|cr1|d2|f1|g2|g3s?|h1|hs1|i[23]|m4|p[23]|r4|t2|x1e?)\..*", AttachmentLimit(most=40)),
    (r"hpc[78]a\..*", AttachmentLimit(most=27)),
    (r"p4de?\..*", AttachmentLimit(most=28)),
    (r"(inf2\.(24|48)xlarge|trn1n?\.32xlarge)", AttachmentLimit(most=29, interfaces=True)),
    (r"(inf2|trn1n?)\..*", AttachmentLimit(most=27, interfaces=True, disks=True)),
    (r"([cmr]|hpc)7g[dn]?\..*", SHARED),
    (r"(m8azn|x8aedz)\.24xlarge", AttachmentLimit(most=128)),
    (r"((m8azn|x8aedz)\.12xlarge|(p|trn)\d.*\.48xlarge)", AttachmentLimit(most=64)),
)
# Attachments used by the accelerators of a type: of one size, or of all other sizes of a family.
ACCELERATORS = {
    "dl1": 8,
    "dl2q": 8,
    "g4ad.16xlarge": 4,
    "g4ad.8xlarge": 2,
    "g4ad": 1,
    "g4dn.12xlarge": 4,
    "g4dn": 1,
    "g5.12xlarge": 4,
    "g5.24xlarge": 4,
    "g5.48xlarge": 16,
    "g5": 1,
    "g5g.16xlarge": 2,
    "g5g": 1,
    "inf1.24xlarge": 16,
    "inf1.6xlarge": 4,
    "inf1": 1,
    "p3dn": 8,
    "vt1.6xlarge": 4,
    "vt1": 2,
}
DEDICATED_FROM = 7  # generation: from there on most families have attachments for volumes alone
DEDICATED_EARLY = re.compile(r"(g6|gr6|p5|f2|trn2)[a-z]*")
STEPS = (
    (48, 128),
    (32, 88),
    (24, 64),
    (16, 48),
    (0, 32),
)  # attachments for volumes alone, by size: (xlarge multiple or more, attachments)


def max_volumes(config: Config, metadata: InstanceMetadata, local_disks: int) -> int:
    """Return how many volumes can be attached to this node. Raises what `metadata` raises."""
    others = OtherAttachments(interfaces=metadata.interfaces(), disks=local_disks, volumes=metadata.launch_volumes())
    return min(allowed(config, metadata.identity().type, others), len(WRITABLE))


def allowed(config: Config, instance_type: str, others: OtherAttachments) -> int:
    """Return how many volumes can be attached to the node, 0 when not known. The configuration overrides the type."""
    if config.attach_limit or not instance_type:
        return config.attach_limit
    return max(1, volumes(instance_type, others) - config.reserved_attachments)  # 0 would mean no limit


def volumes(instance_type: str, others: OtherAttachments) -> int:
    """Return how many volumes the type leaves beside the other attachments; negative when they are too many."""
    limit = limit_of(instance_type)
    used = ROOT + others.volumes
    if limit.interfaces:
        used += others.interfaces
    if limit.disks:
        used += others.disks + _accelerators(instance_type)
    return limit.most - used


def limit_of(instance_type: str) -> AttachmentLimit:
    """Return the limit of a type, if known, or what follows from its family and size."""
    for pattern, limit in KNOWN_TYPES:
        if re.fullmatch(pattern, instance_type):
            return limit
    family, _, size = instance_type.partition(".")
    generation = re.match(r"[a-z]+(\d+)", family)
    if DEDICATED_EARLY.fullmatch(family) or (generation and int(generation[1]) >= DEDICATED_FROM):
        times = re.match(r"(\d+)xlarge", size)
        return AttachmentLimit(most=next(most for least, most in STEPS if (int(times[1]) if times else 0) >= least))
    return SHARED


def cards(instance_type: str) -> int:
    """Return the number of EBS cards of a type."""
    return next((number for pattern, number in CARDS if re.fullmatch(pattern, instance_type)), 1)


def _accelerators(instance_type: str) -> int:
    return ACCELERATORS.get(instance_type, ACCELERATORS.get(instance_type.partition(".")[0], 0))
