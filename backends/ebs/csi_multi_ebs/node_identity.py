"""Which EC2 instance a node is, by the configuration or by what Kubernetes has on record of the node.

Kubernetes has the instance's id in the Node's spec.providerID, its zone and type in labels. Both are written by the
cloud-controller-manager, or by the kubelet, maybe some seconds after the driver has started.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from csi_multi.contract import FailedPrecondition, NodeRecord, Segments, Unavailable

from . import outposts
from .config import Config
from .resources import INSTANCE_ID

PROVIDER_ID = re.compile(rf"aws://[^/]*/(?:([-a-z0-9]+)/)?({INSTANCE_ID.pattern})")  # zone and instance
ZONE, ZONE_ID = "topology.kubernetes.io/zone", "topology.k8s.aws/zone-id"
TYPE = "node.kubernetes.io/instance-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    instance: str
    zone: str
    type: str
    zone_id: str = ""  # "": not known
    outpost: str = ""  # ARN; "": in the region

    @property
    def segments(self) -> Segments:
        """Where the instance is, in the terms of the contract."""
        return (
            {"zone": self.zone} | ({"zone-id": self.zone_id} if self.zone_id else {}) | outposts.segment(self.outpost)
        )


def configured(config: Config) -> Identity:
    """Return the identity of `metadata: static`. Raises FailedPrecondition."""
    given = {"instance_id": config.instance_id, "zone": config.zone}
    if missing := [key for key, value in given.items() if not value]:
        raise FailedPrecondition(
            f"'metadata: static' needs {' and '.join(missing)} in the configuration; set what is missing"
        )
    return Identity(
        instance=config.instance_id,
        zone=config.zone,
        type=config.instance_type,
        zone_id=config.zone_id,
        outpost=config.outpost_arn,
    )


def recorded(record: NodeRecord) -> Identity:
    """Return the identity of `metadata: kubernetes`.

    Raises FailedPrecondition for a node that is no instance, Unavailable while something is missing.
    """
    found = PROVIDER_ID.fullmatch(record.provider_id)
    if record.provider_id and not found:
        raise FailedPrecondition(
            f"this node is not an EC2 instance: its Node object has the providerID {record.provider_id!r}, not "
            "aws:///ZONE/i-…"
        )
    zone = (found and found[1]) or record.labels.get(ZONE, "")
    kind = record.labels.get(TYPE, "")
    values = {"spec.providerID": record.provider_id, f"the label {ZONE}": zone, f"the label {TYPE}": kind}
    if missing := [key for key, value in values.items() if not value]:
        raise Unavailable(
            f"the Node object of this node lacks {', '.join(missing)}, which AWS's cloud-controller-manager writes "
            "after the node has joined; if it never does, set it by hand, or use 'metadata: static'"
        )
    assert found
    return Identity(instance=found[2], zone=zone, type=kind, zone_id=record.labels.get(ZONE_ID, ""))
