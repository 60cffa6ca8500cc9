"""Creation, copy and deletion of volumes with EC2's checks that moto lacks, and client tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.sax.saxutils import unescape

from . import fake_aws_services
from . import fake_ec2_moto as moto
from .fake_ec2_calls import Answer, Call, Refusal, answer
from .fake_ec2_describes import VOLUMES, absent

if TYPE_CHECKING:
    from .fake_ec2_service import Service


@dataclass(slots=True)
class Limits:
    """The limits of an account per region. None and empty: no limit."""

    volumes: int | None = None  # instances' own volumes do not count
    gigabytes: int | None = None
    attachments: int | None = None  # per instance, without its own
    modifications: int = 4  # per volume in 24 hours
    full_zones: set[str] = field(default_factory=set)  # InsufficientVolumeCapacity


@dataclass(frozen=True, slots=True)
class _Used:
    digest: str
    volume: str
    answer: Answer


class Tokens:
    """Every token of a successful creation, by account, region and action."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, str, str, str], _Used] = {}

    def once(self, call: Call, make: Callable[[], tuple[moto.Volume, Answer]]) -> Answer:
        """Create the volume, or return the token's volume: as it is now, or as it was when it is deleted.

        A refused creation does not use up its token.
        """
        token = call.get("ClientToken")
        if not token:
            return make()[1]
        key = (call.account, call.region, call.action, token)
        digest = call.digest(without="ClientToken")
        if used := self._used.get(key):
            return self._again(call, digest, used)
        volume, answer = make()
        self._used[key] = _Used(digest, volume.id, answer)
        return answer

    def volume(self, token: str) -> str:
        """Return the id of the volume that was made with this token. Raises KeyError."""
        return next(used.volume for key, used in self._used.items() if key[-1] == token)

    def _again(self, call: Call, digest: str, used: _Used) -> Answer:
        if used.digest != digest:
            text = f"The client token '{call.get('ClientToken')}' was used with other parameters."
            raise Refusal("IdempotentParameterMismatch", text)
        volume = moto.store(call).volumes.get(used.volume)
        return moto.as_it_is(call, volume) if volume else used.answer


def volume_of(call: Call, id: str = "") -> moto.Volume:
    id = id or call.get("VolumeId")
    volume: moto.Volume | None = moto.store(call).volumes.get(id)
    if not volume:
        raise Refusal(VOLUMES.missing, absent(VOLUMES, [id]))
    return volume


def create(cloud: Service, call: Call) -> Answer:
    check_tags(call)
    _check_snapshot(call)
    # Before the token: at the limit of a quota EC2 also refuses a repeated creation.
    _check_quota(cloud, call, int(call.get("Size") or _size_of_snapshot(call)))
    return cloud.tokens.once(call, lambda: _make(cloud, call, {}))


def copy(cloud: Service, call: Call) -> Answer:
    """CopyVolumes, which moto has not: another volume of the source's size and place. moto knows no contents."""
    check_tags(call)
    source = volume_of(call, call.get("SourceVolumeId"))
    if source.status not in ("available", "in-use"):
        raise Refusal("IncorrectState", f"The volume '{source.id}' is in the '{source.status}' state.")
    if int(call.get("Size", str(source.size))) < source.size:
        raise Refusal("InvalidParameterValue", f"The copy cannot be smaller than its source: {source.size} GiB.")
    _check_quota(cloud, call, int(call.get("Size", str(source.size))))
    more = {"AvailabilityZone": str(source.availability_zone), "Size": call.get("Size", str(source.size))}
    if source.encrypted:
        more |= {"Encrypted": "true", "KmsKeyId": str(source.kms_key_id)}
    made = cloud.tokens.once(call, lambda: _make(cloud, call, more, source.id))
    inner = made.body.decode().split(">", 2)[2].replace("<requestId>request-id</requestId></CreateVolumeResponse>", "")
    body = f"<CopyVolumesResponse><volumeSet><item>{inner}</item></volumeSet>"
    return Answer(f"{body}<requestId>request-id</requestId></CopyVolumesResponse>".encode())


def delete(cloud: Service, call: Call) -> Answer:
    volume = volume_of(call)
    if volume.phase == "creating":
        raise Refusal("IncorrectState", f"The volume '{volume.id}' is in the 'creating' state.")
    done = moto.ask(call)
    if volume.id not in moto.store(call).volumes:
        cloud.call_hook(cloud.on_deleted, volume.id)
        cloud.describes.show_deleted(moto.store(call), volume, VOLUMES, cloud.takes.vanishing)
    return done


def describe_status(cloud: Service, call: Call) -> Answer:
    """DescribeVolumeStatus, by id or by status; `cloud.initializing` says which volumes are still being loaded."""
    ids, there = call.many("VolumeId"), moto.store(call).volumes
    if gone := [id for id in ids if id not in there]:
        raise Refusal(VOLUMES.missing, absent(VOLUMES, gone))
    if ids:
        return answer("DescribeVolumeStatus", {"volumeStatusSet": [_status(cloud, there[id]) for id in ids]})
    wanted = call.filters().get("volume-status.status", [])
    found = [id for id in sorted(there) if not wanted or cloud.health.status(id) in wanted]
    page, more = cloud.health.page(call, found)
    return answer("DescribeVolumeStatus", {"volumeStatusSet": [_status(cloud, there[id]) for id in page], **more})


def describe_instance_status(cloud: Service, call: Call) -> Answer:
    """DescribeInstanceStatus: only whether instances reach their volumes."""
    running = {one.id for one in moto.store(call).all_instances() if one._state.name == "running"}
    found = sorted(running & cloud.health.cut_off)
    if call.filters() != {"attached-ebs-status.status": ["impaired"]}:
        raise NotImplementedError(str(call.filters()))
    page, more = cloud.health.page(call, found)
    items = [{"instanceId": id, "attachedEbsStatus": {"status": "impaired"}} for id in page]
    return answer("DescribeInstanceStatus", {"instanceStatusSet": items, **more})


def _status(cloud: Service, volume: moto.Volume) -> dict[str, object]:
    details = cloud.health.details(volume.id)
    progress: dict[str, object] = {}
    if volume.snapshot_id or volume.source_volume_id:  # of an empty volume EC2 says nothing
        percent, left = cloud.initializing.get(volume.id, (100, None))
        done = volume.id not in cloud.initializing
        details.append({"name": "initialization-state", "status": "completed" if done else "initializing"})
        known = {} if left is None else {"estimatedTimeToCompleteInSeconds": left}
        progress = {"initializationStatusDetails": {"initializationType": "default", "progress": percent, **known}}
    checked = {"status": cloud.health.status(volume.id), "details": details}
    return {"volumeId": volume.id, "volumeStatus": checked, **cloud.health.events(volume.id), **progress}


def tag(cloud: Service, call: Call) -> Answer:
    """CreateTags."""
    check_tags(call)
    return moto.ask(call)


def check_tags(call: Call) -> None:
    tags = call.tags()
    keys = [key for key, _ in tags]
    if len(tags) > 50:
        raise Refusal("TagLimitExceeded", "More than 50 tags specified")
    if len(set(keys)) < len(keys):
        raise Refusal("InvalidParameterValue", "Duplicate tag key specified.")
    for key, value in tags:
        if key.startswith("aws:"):
            raise Refusal("InvalidParameterValue", f"Tag keys starting with 'aws:' are reserved: {key}")
        if not 1 <= len(key) <= 128 or len(value) > 256:
            raise Refusal("InvalidParameterValue", f"Tag key or value exceeds its maximum length: {key}")


def _make(cloud: Service, call: Call, more: dict[str, str], source: str = "") -> tuple[moto.Volume, Answer]:
    zone = more.get("AvailabilityZone", call.get("AvailabilityZone"))
    if not moto.store(call).get_zone_by_name(zone):
        raise Refusal("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
    if zone in cloud.limits.full_zones:
        text = f"There is not enough capacity in '{zone}' to fulfill your volume request."
        raise Refusal("InsufficientVolumeCapacity", text)
    made = moto.ask(call.but({"Action": "CreateVolume", **_defaults(call), **more}, without="SourceVolumeId"))
    if made.status != 200:
        raise Refusal(*_error(made))
    volume = moto.born[-1]
    volume.source_volume_id = source or None
    if origin := moto.store(call).snapshots.get(call.get("SnapshotId")) or moto.store(call).volumes.get(source):
        volume.blocks = dict(origin.blocks)
    volume.outpost_arn = call.get("OutpostArn") or (volume_of(call, source).outpost_arn if source else None)
    volume.volume_initialization_rate = call.get("VolumeInitializationRate") or None
    return volume, made


def _defaults(call: Call) -> dict[str, str]:
    """Return what EC2 adds and moto does not, or adds in a way that is slow."""
    more = {key: value for key, value in moto.GP3.items() if call.get("VolumeType") == "gp3" and key not in call.params}
    if call.get("Encrypted") == "true" and not call.get("KmsKeyId"):
        more["KmsKeyId"] = f"arn:aws:kms:{call.region}:{call.account}:alias/aws/ebs"
    return more


def _check_quota(cloud: Service, call: Call, size: int) -> None:
    own = [volume for volume in moto.store(call).volumes.values() if not volume.root]
    limits = cloud.limits
    if limits.volumes is not None and len(own) >= limits.volumes:
        raise Refusal("VolumeLimitExceeded", f"You have exceeded your maximum volume limit of {limits.volumes}.")
    if limits.gigabytes is not None and sum(volume.size for volume in own) + size > limits.gigabytes:
        raise Refusal("VolumeLimitExceeded", f"You have exceeded your maximum of {limits.gigabytes} gigabytes.")
    kind = call.get("VolumeType", "gp2")
    alike = [volume.size for volume in moto.store(call).volumes.values() if volume.volume_type == kind]
    fake_aws_services.refuse_more(cloud, kind, sum(alike), size)


def _check_snapshot(call: Call) -> None:
    id = call.get("SnapshotId")
    if not id:
        return
    snapshot = moto.store(call).snapshots.get(id)
    if not snapshot:
        raise Refusal("InvalidSnapshot.NotFound", f"The snapshot '{id}' does not exist.")
    if snapshot.status != "completed":
        raise Refusal("IncorrectState", f"{id}: Snapshot is in invalid state - {snapshot.status}")
    if int(call.get("Size") or snapshot.volume_size) < snapshot.volume_size:
        text = f"Volume is smaller than snapshot '{id}', expect size >= {snapshot.volume_size} GB"
        raise Refusal("InvalidParameterValue", text)


def _size_of_snapshot(call: Call) -> int:
    snapshot = moto.store(call).snapshots.get(call.get("SnapshotId"))
    return snapshot.volume_size if snapshot else 0


def _error(made: Answer) -> tuple[str, str, int]:
    text = made.body.decode()
    code = text.partition("<Code>")[2].partition("</Code>")[0]
    return code, unescape(text.partition("<Message>")[2].partition("</Message>")[0]), made.status
