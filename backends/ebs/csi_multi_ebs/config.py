"""The schemas of an instance's configuration and of the parameters of all classes.

Class parameters have the names and values of aws-ebs-csi-driver, so that classes written for it work here. Options
of mkfs belong to the core and are the same for every backend.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec

from csi_multi.contract import Doc, InvalidArgument, Keys, Reset, Schema

from . import outposts
from .resources import GIB, SnapshotLock
from .user_tags import tag_problem

Type = Literal["gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"]
StringMap = dict[str, str]

TAGS = r"tagSpecification.*"
OUTPOST_ARN = rf"^({outposts.ARN})?\Z"
UNTAGS = r"tagDeletion.*"


class Config(Schema, frozen=True, kw_only=True):
    """The configuration of an instance: one account in one region."""

    region: Annotated[str, Doc("AWS region of the volumes, for example eu-west-1", pattern=r"^[a-z][a-z0-9-]{1,40}\Z")]
    zones: Annotated[
        tuple[str, ...], Doc("availability zones in which volumes may be created; empty: all zones of the region")
    ] = ()
    well_known_zone_keys: Annotated[
        bool,
        Doc(
            "whether nodes also report topology.kubernetes.io/zone and topology.k8s.aws/zone-id, and volumes the "
            "former instead of the driver's own key; false only where these labels of nodes have other values than "
            "EC2's"
        ),
    ] = True
    role_arn: Annotated[
        str, Doc("IAM role to assume, for volumes of another account", pattern=r"^(arn:[a-z-]+:iam::\d{12}:role/.+)?\Z")
    ] = ""
    external_id: Annotated[str, Doc("external id that the role's trust policy requires")] = ""
    profile: Annotated[
        str, Doc("profile in the AWS configuration files; empty: environment, web identity or instance role")
    ] = ""
    endpoint: Annotated[
        str,
        Doc(
            "URL of EC2, for private endpoints and tests; empty: the endpoint of the region",
            pattern=r"^(https?://.+)?\Z",
        ),
    ] = ""
    fips: Annotated[bool, Doc("call the FIPS endpoints of AWS; excludes endpoint")] = False
    user_agent_extra: Annotated[
        str, Doc("text at the end of the User-Agent header of every call", pattern=r"^[ -~]{0,200}\Z")
    ] = ""
    kubernetes_cluster: Annotated[
        str,
        Doc(
            "every volume and snapshot gets the tag kubernetes.io/cluster/<this>=owned and a Name, volumes also "
            "KubernetesCluster=<this>",
            pattern=r"^[-_.A-Za-z0-9]{0,100}\Z",
        ),
    ] = ""
    extra_tags: Annotated[
        StringMap, Doc("tags for every volume and snapshot; a tag of a class overrides one with the same key")
    ] = msgspec.field(default_factory=dict)
    invalid_tags: Annotated[
        Literal["refuse", "skip"],
        Doc("what happens to a tag of a class that is not valid: the request is refused; or the tag is left out"),
    ] = "refuse"
    encrypted: Annotated[
        bool | None,
        Doc("whether to encrypt volumes whose StorageClass does not set it; default: the setting of the account"),
    ] = None
    kms_key_id: Annotated[
        str, Doc("KMS key of encrypted volumes whose StorageClass names none; empty: the key of AWS")
    ] = ""
    default_size: Annotated[int, Doc("bytes of a volume when the request has no size", ge=GIB)] = 100 * GIB
    capacity: Annotated[
        Literal["quotas", "unlimited"],
        Doc("what GetCapacity reports: what the account's quotas leave, if they can be read; or no limit"),
    ] = "quotas"
    connect_seconds: Annotated[float, Doc("seconds to wait for a connection to EC2", ge=0.1, le=60)] = 5.0
    read_seconds: Annotated[float, Doc("seconds to wait for EC2's response to one call", ge=0.1, le=300)] = 30.0
    max_attempts: Annotated[int, Doc("how often one call is tried when EC2 throttles it or fails", ge=1, le=50)] = 4
    wait_seconds: Annotated[
        float,
        Doc("seconds to wait until a volume is created, attached or changed; then the caller has to retry", ge=1),
    ] = 50.0
    poll_seconds: Annotated[
        float, Doc("seconds until the state of a volume is polled first; the interval then grows", ge=0.01, le=10)
    ] = 0.2
    consistency_seconds: Annotated[
        float,
        Doc("seconds for which EC2 may not show a new volume yet; until then an unclear result means a retry", ge=0),
    ] = 15.0
    merge_seconds: Annotated[
        float,
        Doc(
            "seconds that a change of a volume waits for another one, so that both are a single call to EC2",
            ge=0,
            le=10,
        ),
    ] = 1.0
    metadata: Annotated[
        Literal["imds", "kubernetes", "auto", "static"],
        Doc(
            "which instance a node is, by: metadata service, its Kubernetes Node, the first of both, the next five keys"
        ),
    ] = "imds"
    instance_id: Annotated[str, Doc("the node's EC2 instance id, with `metadata: static`")] = ""
    zone: Annotated[str, Doc("the node's availability zone, with `metadata: static`")] = ""
    zone_id: Annotated[str, Doc("the id of the node's zone, such as euw1-az1, with `metadata: static`; optional")] = ""
    outpost_arn: Annotated[
        str, Doc("ARN of the node's Outpost, with `metadata: static`; optional", pattern=OUTPOST_ARN)
    ] = ""
    instance_type: Annotated[str, Doc("the node's instance type, with `metadata: static`")] = ""
    metadata_endpoint: Annotated[str, Doc("URL of the instance metadata service", pattern=r"^https?://.+")] = (
        "http://169.254.169.254"
    )
    attach_limit: Annotated[
        int, Doc("volumes that can be attached to a node; 0: what its instance type allows", ge=0)
    ] = 0
    reserved_attachments: Annotated[
        int, Doc("attachments kept free for other programs; a node reports that many volumes less", ge=0)
    ] = 0

    def __post_init__(self) -> None:
        """Raises ValueError, which is reported with the name of the configuration file."""
        for key, value in self.extra_tags.items():
            if reason := tag_problem(key, value):
                raise ValueError(f"'extra_tags': {reason}")
        if self.fips and self.endpoint:
            raise ValueError("'fips' and 'endpoint' exclude each other; set the URL of a FIPS endpoint alone")


Iops = Annotated[int, Doc("I/O operations per second (gp3, io1, io2)", ge=1)]
PerGb = Annotated[int, Doc("I/O operations per second for each GiB (gp3, io1, io2); excludes iops", ge=1)]
Throughput = Annotated[int, Doc("MiB/s (gp3); EC2's default: 125", ge=1)]


class Parameters(Schema, frozen=True, kw_only=True):
    """StorageClass parameters."""

    loose: ClassVar[bool] = True

    type: Annotated[Type, Doc("volume type")] = "gp3"
    iops: Iops | None = None
    iops_per_gb: PerGb | None = None
    allow_auto_iops_per_gb_increase: Annotated[
        bool, Doc("raise IOPS below the minimum of the type to that minimum, instead of refusing the volume")
    ] = False
    allow_auto_iops_increase_on_modify: Annotated[bool, Doc("keep the ratio iopsPerGB when the volume grows")] = False
    throughput: Throughput | None = None
    encrypted: Annotated[bool | None, Doc("whether the volume is encrypted; default: the setting of the instance")] = (
        None
    )
    kms_key_id: Annotated[str, Doc("KMS key (id, alias or ARN); implies encryption")] = ""
    volume_initialization_rate: (
        Annotated[int, Doc("MiB/s at which EC2 loads a volume from its snapshot; costs extra", ge=100, le=300)] | None
    ) = None
    block_attach_until_initialized: Annotated[
        bool, Doc("attach a restored or copied volume only once EC2 has loaded it, so that first reads are not slow")
    ] = False
    block_express: Annotated[bool, Doc("has no effect: io2 volumes are always Block Express")] = False
    tags: Annotated[StringMap, Keys(TAGS, "tagSpecification_N: a tag as key=value; the value may be a template")] = (
        msgspec.field(default_factory=dict)
    )
    old_names: Annotated[
        StringMap, Keys("fsType", "fsType: old name of csi.storage.k8s.io/fstype, which the provisioner reads")
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_both(self.iops, self.iops_per_gb)
        if self.kms_key_id and self.encrypted is False:
            raise ValueError("'kmsKeyId' requires encryption; set encrypted to \"true\", or leave kmsKeyId out")


class MutableParameters(Schema, frozen=True, kw_only=True):
    """VolumeAttributesClass parameters, which can change while a volume is in use."""

    loose: ClassVar[bool] = True

    type: Annotated[Type, Doc("volume type")] | None = None
    volume_type: Annotated[Type, Doc("the same as type, under its old name; if both are set, type counts")] | None = (
        None
    )
    iops: Iops | Reset | None = None
    iops_per_gb: PerGb | None = None
    allow_auto_iops_increase_on_modify: (
        Annotated[bool, Doc("keep the ratio iopsPerGB when the volume grows")] | None
    ) = None
    throughput: Throughput | Reset | None = None
    tags: Annotated[
        StringMap, Keys(TAGS, "tagSpecification_N: a tag to set, as key=value; the value may be a template")
    ] = msgspec.field(default_factory=dict)
    deletions: Annotated[StringMap, Keys(UNTAGS, "tagDeletion_N: key of a tag to remove")] = msgspec.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        _refuse_both(self.iops, self.iops_per_gb)
        msgspec.structs.force_setattr(self, "type", self.type or self.volume_type)


class SnapshotParameters(Schema, frozen=True, kw_only=True):
    """VolumeSnapshotClass parameters."""

    loose: ClassVar[bool] = True

    fast_snapshot_restore_availability_zones: Annotated[
        str,
        Doc(
            "zones, separated by commas, for fast snapshot restore: volumes have full speed at once; costs extra",
            pattern=r"^([a-z0-9-]+( *, *[a-z0-9-]+)*)?\Z",
        ),
    ] = ""
    outpost_arn: Annotated[
        str,
        Doc("ARN of the Outpost on which snapshots of its volumes are kept; empty: in the region", pattern=OUTPOST_ARN),
    ] = ""
    lock_mode: (
        Annotated[
            Literal["governance", "compliance"],
            Doc(
                "lock snapshots against deletion; governance: privileged users can unlock them, compliance: nobody can"
            ),
        ]
        | None
    ) = None
    lock_duration: (
        Annotated[int, Doc("days for which snapshots are locked; excludes lockExpirationDate", ge=1, le=36500)] | None
    ) = None
    lock_expiration_date: (
        Annotated[datetime, Doc("when locks end, such as 2030-12-31T23:59:59Z; excludes lockDuration", tz=True)] | None
    ) = None
    lock_cool_off_period: (
        Annotated[int, Doc("hours for which a compliance lock can still be changed or removed", ge=1, le=72)] | None
    ) = None
    tags: Annotated[StringMap, Keys(TAGS, "tagSpecification_N: a tag as key=value; the value may be a template")] = (
        msgspec.field(default_factory=dict)
    )

    def __post_init__(self) -> None:
        """Raise ValueError unless the parameters of a lock are complete and fit together."""
        others = {
            "lockDuration": self.lock_duration,
            "lockExpirationDate": self.lock_expiration_date,
            "lockCoolOffPeriod": self.lock_cool_off_period,
        }
        given = next((key for key, value in others.items() if value is not None), "")
        if given and not self.lock_mode:
            raise ValueError(f"{given!r} has no effect without 'lockMode'; set it, or leave {given!r} out")
        if self.lock_mode and (self.lock_duration is None) == (self.lock_expiration_date is None):
            raise ValueError("'lockMode' needs either 'lockDuration' or 'lockExpirationDate'; set one of them")
        if self.lock_cool_off_period is not None and self.lock_mode != "compliance":
            raise ValueError("'lockCoolOffPeriod' is for 'lockMode: compliance' only; leave it out")

    @property
    def lock(self) -> SnapshotLock | None:
        """How to lock snapshots; None: not."""
        if self.lock_mode is None:
            return None
        return SnapshotLock(
            mode=self.lock_mode,
            days=self.lock_duration,
            until=self.lock_expiration_date,
            cool_off_hours=self.lock_cool_off_period,
        )

    @property
    def fast_zones(self) -> tuple[str, ...]:
        """The zones for fast snapshot restore."""
        return tuple(zone.strip() for zone in self.fast_snapshot_restore_availability_zones.split(",") if zone.strip())


class GroupSnapshotParameters(SnapshotParameters, frozen=True, kw_only=True):
    """VolumeGroupSnapshotClass parameters: those of a VolumeSnapshotClass, for every member."""


def value_or_default(name: str, value: int | Reset | None, default: int | str | None) -> int | None:
    """Return a mutable number, for one that is reset the default of the volume type; None: unset, or no such setting.

    Raises InvalidArgument where `default` is a text: why there is none.
    """
    if value is None or isinstance(value, int):
        return value
    if isinstance(default, str):
        raise InvalidArgument(f"{name!r}: {default}; set a number")
    return default


def _refuse_both(iops: int | Reset | None, per_gb: int | None) -> None:
    if iops is not None and per_gb is not None:
        raise ValueError("'iops' and 'iopsPerGB' exclude each other; leave one out")
