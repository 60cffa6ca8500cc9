"""How many EBS volumes fit on an instance: a matter of its type, and of what else takes its attachments.

From "Amazon EBS volume limits for Amazon EC2 instances" in the EC2 user guide, and DescribeInstanceTypes
(EbsInfo: MaximumEbsAttachments, AttachmentLimitType), which a node has no right to call. Where types that are
not known yet are guessed, it is the lower of two numbers: a pod that waits is better than one that hangs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .config import Config

ROOT = 1  # every instance has one volume to boot from


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """`most` attachments, the root volume's included, and what else they are shared with."""

    most: int
    interfaces: bool = False
    disks: bool = False  # local NVMe disks and accelerators


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """What an instance has beside our volumes."""

    interfaces: int = 1
    disks: int = 0  # local NVMe disks (instance store)
    volumes: int = 0  # that its launch attached, beside the root


def _metal(most: int) -> Limit:
    """Return the limit of an instance that takes so many volumes with one network interface."""
    return Limit(most=most + 1, interfaces=True)


SHARED = Limit(most=28, interfaces=True, disks=True)
# The first pattern that matches a whole type counts.
KNOWN: tuple[tuple[str, Limit], ...] = (
    (r"mac-m4(pro)?\.metal", _metal(31)),
    (r"mac1\.metal", _metal(16)),
    (r"mac.*\.metal", _metal(10)),
    (r"u-[0-9]+tb1\.metal", _metal(19)),
    (r".*\.metal", _metal(31)),
    (r"(m8azn|x8aedz)\.metal-24xl", _metal(79)),
    (r"([cmr]8a\.metal-24xl|(m8azn|x8aedz)\.metal-12xl|[cmrx]8i.*\.metal-48xl)", _metal(64)),
    (r".*\.metal-(48|96)xl", _metal(78)),
    (r".*\.metal-.*", _metal(39)),
    (r"(c[13]|m[123]|r3|t1)\..*", Limit(most=39)),
    # Beyond this Linux on Xen may not boot.
    (r"(c4|cc2|cr1|d2|f1|g2|g3s?|h1|hs1|i[23]|m4|p[23]|r4|t2|x1e?)\..*", Limit(most=40)),
    (r"hpc[78]a\..*", Limit(most=27)),
    (r"p4de?\..*", Limit(most=28)),
    (r"(inf2|trn1n?)\..*", Limit(most=27, interfaces=True, disks=True)),
    (r"([cmr]|hpc)7g[dn]?\..*", SHARED),
    (r"(m8azn|x8aedz)\.24xlarge", Limit(most=128)),
    (r"((m8azn|x8aedz)\.12xlarge|(p|trn)\d.*\.48xlarge)", Limit(most=64)),
)
# Attachments that the accelerators of a type take: of one size, or of all others of a family.
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
DEDICATED_FROM = 7  # generation: since then most families have attachments that are for volumes alone
DEDICATED_EARLY = re.compile(r"(g6|gr6|p5|f2|trn2)[a-z]*")
STEPS = ((48, 128), (32, 88), (24, 64), (16, 48), (0, 32))  # dedicated ones, by size: so many times xlarge or more


def allowed(config: Config, instance_type: str, attached: Attached) -> int:
    """Return how many volumes the node takes, 0 where nobody can tell: the configuration has the last word."""
    if config.attach_limit or not instance_type:
        return config.attach_limit
    return max(1, volumes(instance_type, attached) - config.reserved_attachments)  # 0 would mean no limit


def volumes(instance_type: str, attached: Attached) -> int:
    """Return how many volumes fit beside what is attached, by the type alone; less than none if it is too much."""
    limit = limit_of(instance_type)
    others = ROOT + attached.volumes
    if limit.interfaces:
        others += attached.interfaces
    if limit.disks:
        others += attached.disks + _accelerators(instance_type)
    return limit.most - others


def limit_of(instance_type: str) -> Limit:
    """Return what is known of a type, or follows from its family and size."""
    for pattern, limit in KNOWN:
        if re.fullmatch(pattern, instance_type):
            return limit
    family, _, size = instance_type.partition(".")
    generation = re.match(r"[a-z]+(\d+)", family)
    if DEDICATED_EARLY.fullmatch(family) or (generation and int(generation[1]) >= DEDICATED_FROM):
        times = re.match(r"(\d+)xlarge", size)
        return Limit(most=next(most for least, most in STEPS if (int(times[1]) if times else 0) >= least))
    return SHARED


def _accelerators(instance_type: str) -> int:
    return ACCELERATORS.get(instance_type, ACCELERATORS.get(instance_type.partition(".")[0], 0))
