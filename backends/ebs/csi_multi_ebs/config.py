"""The schemas of an instance's configuration and of the parameters of all classes.

Class parameters have the names and values of aws-ebs-csi-driver, so that classes written for it work here. Options
of mkfs belong to the core and are the same for every backend.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from csi_multi.contract import Doc, InvalidArgument, Keys, Reset, Schema

from .resources import GIB
from .user_tags import tag_problem

Type = Literal["gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"]
StringMap = dict[str, str]

TAGS = r"tagSpecification.*"
UNTAGS = r"tagDeletion.*"
UNSUPPORTED = {
    "outpostArn": "snapshots on Outposts are not supported; leave it out to create the snapshot in the volume's region",
    "lockMode": "snapshot locks are not supported; lock snapshots with 'aws ec2 lock-snapshot'",
    "lockDuration": "snapshot locks are not supported; lock snapshots with 'aws ec2 lock-snapshot'",
    "lockExpirationDate": "snapshot locks are not supported; lock snapshots with 'aws ec2 lock-snapshot'",
    "lockCoolOffPeriod": "snapshot locks are not supported; lock snapshots with 'aws ec2 lock-snapshot'",
}


class Config(Schema, frozen=True, kw_only=True):
    """The configuration of an instance: one account in one region."""

    region: Annotated[str, Doc("AWS region of the volumes, for example eu-west-1", pattern=r"^[a-z][a-z0-9-]{1,40}\Z")]
    zones: Annotated[
        tuple[str, ...], Doc("availability zones in which volumes may be created; empty: all zones of the region")
    ] = ()
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
    kubernetes_cluster: Annotated[
        str,
        Doc(
            "every volume and snapshot gets the tag kubernetes.io/cluster/<this>=owned",
            pattern=r"^[-_.A-Za-z0-9]{0,100}\Z",
        ),
    ] = ""
    extra_tags: Annotated[
        StringMap, Doc("tags for every volume and snapshot; a tag of a class overrides one with the same key")
    ] = msgspec.field(default_factory=dict)
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
        Literal["imds", "static"],
        Doc("where a node reads its identity: from the instance metadata service, or from the next three keys"),
    ] = "imds"
    instance_id: Annotated[str, Doc("the node's EC2 instance id, with `metadata: static`")] = ""
    zone: Annotated[str, Doc("the node's availability zone, with `metadata: static`")] = ""
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
    block_attach_until_initialized: Annotated[bool, Doc("not supported: true is refused")] = False
    block_express: Annotated[bool, Doc("has no effect: io2 volumes are always Block Express")] = False
    tags: Annotated[StringMap, Keys(TAGS, "tagSpecification_N: a tag as key=value; the value may be a template")] = (
        msgspec.field(default_factory=dict)
    )
    old_names: Annotated[
        StringMap, Keys("fsType", "fsType: old name of csi.storage.k8s.io/fstype, which the provisioner reads")
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_both(self.iops, self.iops_per_gb)
        if self.block_attach_until_initialized:
            raise ValueError(
                "'blockAttachUntilInitialized' is not supported: volumes can be used while EC2 loads them; leave it "
                "out, and use fast snapshot restores or volumeInitializationRate if first reads are too slow"
            )
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
    tags: Annotated[StringMap, Keys(TAGS, "tagSpecification_N: a tag as key=value; the value may be a template")] = (
        msgspec.field(default_factory=dict)
    )
    unsupported: Annotated[
        StringMap,
        Keys("|".join(UNSUPPORTED), "outpostArn, lockMode, lockDuration and the other snapshot locks: refused"),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.unsupported:
            raise ValueError(f"{key!r}: {UNSUPPORTED[key]}")

    @property
    def fast_zones(self) -> tuple[str, ...]:
        """The zones for fast snapshot restore."""
        return tuple(zone.strip() for zone in self.fast_snapshot_restore_availability_zones.split(",") if zone.strip())


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
