"""What an operator, a StorageClass, a VolumeAttributesClass and a VolumeSnapshotClass may say.

Class parameters have the names and values that aws-ebs-csi-driver gave them, so that classes written for it
work here. Options of mkfs are the core's, the same for every backend.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from csi_multi.contract import Doc, Keys, Schema

from .tag_rules import objection

GIB = 2**30

Type = Literal["gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"]
Texts = dict[str, str]

TAGS = r"tagSpecification.*"
UNTAGS = r"tagDeletion.*"
UNSUPPORTED = {
    "outpostArn": "snapshots on Outposts are not supported; leave it out, and the snapshot is in the volume's region",
    "lockMode": "snapshot locks are not supported; lock snapshots with 'aws ec2 lock-snapshot'",
    "lockDuration": "snapshot locks are not supported; lock snapshots with 'aws ec2 lock-snapshot'",
    "lockExpirationDate": "snapshot locks are not supported; lock snapshots with 'aws ec2 lock-snapshot'",
    "lockCoolOffPeriod": "snapshot locks are not supported; lock snapshots with 'aws ec2 lock-snapshot'",
}


class Config(Schema, frozen=True, kw_only=True):
    """An instance's part of the YAML file: one account in one region."""

    region: Annotated[str, Doc("AWS region of the volumes, for example eu-west-1", pattern=r"^[a-z][a-z0-9-]{1,40}\Z")]
    zones: Annotated[
        tuple[str, ...], Doc("availability zones that volumes may be made in; none given: all of the region")
    ] = ()
    role_arn: Annotated[
        str, Doc("IAM role to assume, for volumes of another account", pattern=r"^(arn:[a-z-]+:iam::\d{12}:role/.+)?\Z")
    ] = ""
    external_id: Annotated[str, Doc("external id that the role's trust policy asks for")] = ""
    profile: Annotated[
        str, Doc("profile of the AWS configuration files; default: environment, web identity or instance role")
    ] = ""
    endpoint: Annotated[
        str, Doc("URL of EC2, for private endpoints and tests; default: the region's", pattern=r"^(https?://.+)?\Z")
    ] = ""
    kubernetes_cluster: Annotated[
        str,
        Doc("tags everything with kubernetes.io/cluster/<this>=owned", pattern=r"^[-_.A-Za-z0-9]{0,100}\Z"),
    ] = ""
    extra_tags: Annotated[Texts, Doc("tags for every volume and snapshot; a class's tags of the same key win")] = (
        msgspec.field(default_factory=dict)
    )
    encrypted: Annotated[
        bool | None,
        Doc("whether volumes are encrypted whose StorageClass does not say; default: the account's setting"),
    ] = None
    kms_key_id: Annotated[str, Doc("KMS key of encrypted volumes whose StorageClass names none; default: AWS's")] = ""
    default_size: Annotated[int, Doc("bytes of a volume when none are asked for", ge=GIB)] = 100 * GIB
    capacity: Annotated[
        Literal["quotas", "unlimited"],
        Doc("what GetCapacity tells: what the account's quotas leave, where they can be asked for; or that all fits"),
    ] = "quotas"
    connect_seconds: Annotated[float, Doc("seconds to wait for a connection to EC2", ge=0.1, le=60)] = 5.0
    read_seconds: Annotated[float, Doc("seconds to wait for EC2's answer to one call", ge=0.1, le=300)] = 30.0
    retry_mode: Annotated[
        Literal["adaptive", "standard"],
        Doc("how throttled calls are repeated; adaptive: also slows down before EC2 has to refuse, see ebs.md"),
    ] = "standard"
    max_attempts: Annotated[int, Doc("how often one call is tried when EC2 throttles or fails", ge=1, le=50)] = 4
    wait_seconds: Annotated[
        float,
        Doc("seconds to wait for a volume to be made, attached or changed before the caller has to ask again", ge=1),
    ] = 50.0
    poll_seconds: Annotated[
        float, Doc("seconds until EC2 is first asked whether a volume is ready; then ever longer", ge=0.01, le=10)
    ] = 0.2
    consistency_seconds: Annotated[
        float,
        Doc("seconds for which EC2 may not show yet what it has made; within them doubt is answered by a retry", ge=0),
    ] = 15.0
    merge_seconds: Annotated[
        float,
        Doc(
            "seconds that a change of a volume waits for another one, so that EC2 is asked for both at once",
            ge=0,
            le=10,
        ),
    ] = 1.0
    metadata: Annotated[
        Literal["imds", "static"],
        Doc("how a node learns about itself: from the instance metadata service, or from the next three keys"),
    ] = "imds"
    instance_id: Annotated[str, Doc("the node's EC2 instance id, with `metadata: static`")] = ""
    zone: Annotated[str, Doc("the node's availability zone, with `metadata: static`")] = ""
    instance_type: Annotated[str, Doc("the node's instance type, with `metadata: static`")] = ""
    metadata_endpoint: Annotated[str, Doc("URL of the instance metadata service", pattern=r"^https?://.+")] = (
        "http://169.254.169.254"
    )
    attach_limit: Annotated[int, Doc("how many volumes a node takes; 0: what its instance type allows", ge=0)] = 0
    reserved_attachments: Annotated[
        int, Doc("attachments that other programs need; taken off what the instance type allows", ge=0)
    ] = 0

    def __post_init__(self) -> None:
        """Raises ValueError, which the reader of the file reports with the file's name."""
        for key, value in self.extra_tags.items():
            if reason := objection(key, value):
                raise ValueError(f"'extra_tags': {reason}")


Iops = Annotated[int, Doc("I/O operations per second (gp3, io1, io2)", ge=1)]
PerGb = Annotated[int, Doc("I/O operations per second and GiB (gp3, io1, io2); not together with iops", ge=1)]
Throughput = Annotated[int, Doc("MiB/s (gp3); EC2's default: 125", ge=1)]


class Parameters(Schema, frozen=True, kw_only=True):
    """StorageClass parameters."""

    loose: ClassVar[bool] = True

    type: Annotated[Type, Doc("volume type")] = "gp3"
    iops: Iops | None = None
    iops_per_gb: PerGb | None = None
    allow_auto_iops_per_gb_increase: Annotated[
        bool, Doc("raise what is too few IOPS for the type to its minimum, instead of refusing the volume")
    ] = False
    allow_auto_iops_increase_on_modify: Annotated[bool, Doc("keep up iopsPerGB when the volume grows")] = False
    throughput: Throughput | None = None
    encrypted: Annotated[bool | None, Doc("whether the volume is encrypted; default: the instance's")] = None
    kms_key_id: Annotated[str, Doc("KMS key (id, alias or ARN); the volume is then encrypted")] = ""
    volume_initialization_rate: (
        Annotated[int, Doc("MiB/s at which a volume is filled from its snapshot; costs extra", ge=100, le=300)] | None
    ) = None
    block_attach_until_initialized: Annotated[bool, Doc("not supported: true is refused")] = False
    block_express: Annotated[bool, Doc("has no effect: io2 volumes are always Block Express")] = False
    tags: Annotated[Texts, Keys(TAGS, "tagSpecification_N: a tag as key=value; the value may be a template")] = (
        msgspec.field(default_factory=dict)
    )
    old_names: Annotated[
        Texts, Keys("fsType", "fsType: an old name of csi.storage.k8s.io/fstype that the provisioner reads")
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_both(self.iops, self.iops_per_gb)
        if self.block_attach_until_initialized:
            raise ValueError(
                "'blockAttachUntilInitialized' is not supported: volumes can be used while EC2 fills them; leave it "
                "out, and use fast snapshot restores or volumeInitializationRate if first reads are too slow"
            )
        if self.kms_key_id and self.encrypted is False:
            raise ValueError("'kmsKeyId' is for encrypted volumes; set encrypted to \"true\", or leave it out")


class MutableParameters(Schema, frozen=True, kw_only=True):
    """VolumeAttributesClass parameters: what can change while a volume is in use."""

    loose: ClassVar[bool] = True

    type: Annotated[Type, Doc("volume type")] | None = None
    iops: Iops | None = None
    iops_per_gb: PerGb | None = None
    allow_auto_iops_increase_on_modify: Annotated[bool, Doc("keep up iopsPerGB when the volume grows")] | None = None
    throughput: Throughput | None = None
    tags: Annotated[
        Texts, Keys(TAGS, "tagSpecification_N: a tag to set, as key=value; the value may be a template")
    ] = msgspec.field(default_factory=dict)
    deletions: Annotated[Texts, Keys(UNTAGS, "tagDeletion_N: key of a tag to remove")] = msgspec.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        _refuse_both(self.iops, self.iops_per_gb)


class SnapshotParameters(Schema, frozen=True, kw_only=True):
    """VolumeSnapshotClass parameters."""

    loose: ClassVar[bool] = True

    fast_snapshot_restore_availability_zones: Annotated[
        str,
        Doc(
            "zones, separated by commas, where volumes made from the snapshot are fast at once; costs extra",
            pattern=r"^([a-z0-9-]+( *, *[a-z0-9-]+)*)?\Z",
        ),
    ] = ""
    tags: Annotated[Texts, Keys(TAGS, "tagSpecification_N: a tag as key=value; the value may be a template")] = (
        msgspec.field(default_factory=dict)
    )
    unsupported: Annotated[
        Texts, Keys("|".join(UNSUPPORTED), "outpostArn, lockMode, lockDuration and the other locks: refused")
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.unsupported:
            raise ValueError(f"{key!r}: {UNSUPPORTED[key]}")

    @property
    def fast_zones(self) -> tuple[str, ...]:
        """The zones for fast snapshot restores."""
        return tuple(zone.strip() for zone in self.fast_snapshot_restore_availability_zones.split(",") if zone.strip())


def _refuse_both(iops: int | None, per_gb: int | None) -> None:
    if iops is not None and per_gb is not None:
        raise ValueError("'iops' and 'iopsPerGB' exclude each other; leave one out")
