"""All calls to EC2. Responses become typed values (resources.py), failures the errors of the contract.

errors.py says which error code becomes which error. Nothing is imported and no connection is opened before the
first call. A resource that EC2 does not show yet is missing from a result: callers that expect it have to retry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from csi_multi.contract import UNOBSERVED, Metric, NotFound, Observer, Unavailable

from . import errors, session
from .config import Config
from .feature_calls import FeatureCalls
from .labels import OWNER
from .listing import MAX_PAGE, chunks, every_page, existing, filters, one_page, with_shape
from .option_calls import MAX_IDS, tag_list, tag_specification
from .resources import (
    INSTANCE_ID,
    SNAPSHOT_ID,
    VOLUME_ID,
    Ec2Attachment,
    Ec2Instance,
    Ec2Modification,
    Ec2Snapshot,
    Ec2Volume,
    Ec2Zone,
    Tags,
)
from .retries import Retries
from .volume_types import NewVolume, VolumeSpec

MAX_FILTER_VALUES = 190  # values of a filter: EC2 accepts 200 per request, the filter on the owner included


class Client(FeatureCalls):
    """EC2 in one account and region. Thread-safe. Every method raises errors of csi_multi.contract."""

    def __init__(self, config: Config, session_name: str = "csi-multi", observe: Observer = UNOBSERVED) -> None:
        """`session_name` is the name of the role session in CloudTrail, when a role is assumed.

        `observe` is called around every call; retries of a call count as part of it.
        """
        self._session = session.Session(config, session_name)
        self._observe = observe
        self._retry_seconds = config.wait_seconds
        self._retries = Retries(config.max_attempts)

    def create_volume(self, volume: NewVolume, zone: str, token: str) -> Ec2Volume:
        """Create a volume: empty, from a snapshot, or as a copy of another volume in its zone.

        With a token that was used before, EC2 returns the volume of that time, as it is now or as it was then.
        Raises TokenMismatch, QuotaExceeded, ZoneFull, InvalidArgument, NotFound for the source.
        """
        fields = {
            **_spec_fields(volume.spec),
            "ClientToken": token,
            "MultiAttachEnabled": volume.multi_attach or None,
            "TagSpecifications": tag_specification("volume", volume.tags),
            "Encrypted": volume.encrypted,
            "KmsKeyId": volume.kms_key or None,
        }
        if volume.copy_of:
            return Ec2Volume.read(self._call("CopyVolumes", SourceVolumeId=volume.copy_of, **fields)["Volumes"][0])
        response = self._call(
            "CreateVolume",
            AvailabilityZone=zone,
            OutpostArn=volume.outposts.get(zone),
            SnapshotId=volume.snapshot or None,
            VolumeInitializationRate=volume.initialization_rate,
            **fields,
        )
        return Ec2Volume.read(response)

    def volumes(self, ids: Collection[str]) -> dict[str, Ec2Volume]:
        """Return those that EC2 shows. An id that is not well-formed is not sent."""

        def fetch(some: list[str]) -> list[dict[str, Any]]:
            return self._all("DescribeVolumes", "Volumes", VolumeIds=some)

        def search(some: list[str]) -> list[dict[str, Any]]:
            return self._search("DescribeVolumes", "Volumes", "volume-id", some)

        found = existing(with_shape(VOLUME_ID, ids), fetch, search, MAX_IDS)
        return {one.id: one for one in map(Ec2Volume.read, found)}

    def volumes_tagged(self, key: str, values: Collection[str], owner: str) -> list[Ec2Volume]:
        """Return the owner's volumes whose tag `key` has one of these values."""
        found: list[Ec2Volume] = []
        for some in chunks(values, MAX_FILTER_VALUES):
            wanted = filters({f"tag:{OWNER}": [owner], f"tag:{key}": some})
            volumes = self._all("DescribeVolumes", "Volumes", Filters=wanted, MaxResults=MAX_PAGE)
            found += [Ec2Volume.read(one) for one in volumes]
        return found

    def volume_page(self, owner: str, limit: int, token: str) -> tuple[list[Ec2Volume], str]:
        """Return a page of the owner's volumes and the token of the next one. Raises InvalidToken."""
        ours = filters({f"tag:{OWNER}": [owner]})

        def fetch(most: int, after: str) -> tuple[list[Ec2Volume], str]:
            response = self._call("DescribeVolumes", Filters=ours, MaxResults=most, NextToken=after or None)
            return [Ec2Volume.read(one) for one in response["Volumes"]], response.get("NextToken") or ""

        return one_page(fetch, limit, token)

    def delete_volume(self, volume: str) -> None:
        """Raises NotFound, VolumeAttached."""
        self._call("DeleteVolume", VolumeId=volume)

    def attach(self, volume: str, instance: str, device: str, card: int | None = None) -> Ec2Attachment:
        """Begin to attach, to an EBS card if one is given.

        Raises NotFound, VolumeAttached, DeviceNameTaken, InstanceFull, IncorrectState.
        """
        response = self._call("AttachVolume", VolumeId=volume, InstanceId=instance, Device=device, EbsCardIndex=card)
        return Ec2Attachment.read(response)

    def detach(self, volume: str, instance: str) -> None:
        """Begin to detach ("": from the one instance that has it).

        Raises NotFound, IncorrectState when it is not attached there.
        """
        self._call("DetachVolume", VolumeId=volume, InstanceId=instance or None)

    def instances(self, ids: Collection[str]) -> dict[str, Ec2Instance]:
        """Return those that EC2 shows: a terminated one for an hour. An id that is not well-formed is not sent."""

        def fetch(some: list[str]) -> list[dict[str, Any]]:
            return self._all("DescribeInstances", "Reservations", InstanceIds=some)

        def search(some: list[str]) -> list[dict[str, Any]]:
            return self._search("DescribeInstances", "Reservations", "instance-id", some)

        reservations = existing(with_shape(INSTANCE_ID, ids), fetch, search, MAX_IDS)
        found = [Ec2Instance.read(one) for reservation in reservations for one in reservation["Instances"]]
        return {one.id: one for one in found}

    def instances_tagged(self, key: str, values: Collection[str]) -> list[str]:
        """Return the ids of the instances whose tag `key` matches one of these values, in which * is anything."""
        wanted = [{"Name": f"tag:{key}", "Values": list(values)}]
        reservations = self._all("DescribeInstances", "Reservations", Filters=wanted)
        return [one["InstanceId"] for reservation in reservations for one in reservation["Instances"]]

    def modify(self, volume: str, spec: VolumeSpec) -> Ec2Modification:
        """Begin to change what the spec sets; size 0 and type "": unchanged.

        Raises NotFound, ModificationCooldown, IncorrectState.
        """
        response = self._call("ModifyVolume", VolumeId=volume, **_spec_fields(spec))
        return Ec2Modification.read(response["VolumeModification"])

    def modifications(self, ids: Collection[str]) -> dict[str, Ec2Modification]:
        """Return the last modification of each volume that had one."""

        def fetch(some: list[str]) -> list[dict[str, Any]]:
            return self._all("DescribeVolumesModifications", "VolumesModifications", VolumeIds=some)

        def search(some: list[str]) -> list[dict[str, Any]]:
            return self._search("DescribeVolumesModifications", "VolumesModifications", "volume-id", some)

        found = existing(with_shape(VOLUME_ID, ids), fetch, search, MAX_IDS)
        return {one["VolumeId"]: Ec2Modification.read(one) for one in found}

    def create_snapshot(self, volume: str, tags: Tags, description: str, outpost: str = "") -> Ec2Snapshot:
        """Create a snapshot. It has no client token, so it is sent once: after Unavailable or Timeout look for it."""
        response = self._call(
            "CreateSnapshot",
            VolumeId=volume,
            Description=description,
            OutpostArn=outpost or None,
            TagSpecifications=tag_specification("snapshot", tags),
        )
        return Ec2Snapshot.read(response)

    def snapshots(self, ids: Collection[str]) -> dict[str, Ec2Snapshot]:
        """Return those that EC2 shows. An id that is not well-formed is not sent."""

        def fetch(some: list[str]) -> list[dict[str, Any]]:
            return self._all("DescribeSnapshots", "Snapshots", SnapshotIds=some)

        def search(some: list[str]) -> list[dict[str, Any]]:
            return self._search("DescribeSnapshots", "Snapshots", "snapshot-id", some, OwnerIds=["self"])

        found = existing(with_shape(SNAPSHOT_ID, ids), fetch, search, MAX_IDS)
        return {one.id: one for one in map(Ec2Snapshot.read, found)}

    def snapshots_tagged(self, key: str, values: Collection[str], owner: str) -> list[Ec2Snapshot]:
        """Return the owner's snapshots whose tag `key` has one of these values."""
        found: list[Ec2Snapshot] = []
        for some in chunks(values, MAX_FILTER_VALUES):
            wanted = filters({f"tag:{OWNER}": [owner], f"tag:{key}": some})
            snapshots = self._all(
                "DescribeSnapshots", "Snapshots", OwnerIds=["self"], Filters=wanted, MaxResults=MAX_PAGE
            )
            found += [Ec2Snapshot.read(one) for one in snapshots]
        return found

    def snapshot_page(self, owner: str, limit: int, token: str, volume: str = "") -> tuple[list[Ec2Snapshot], str]:
        """Return a page of the owner's snapshots (of one volume) and the token of the next one. Raises InvalidToken."""
        ours = filters({f"tag:{OWNER}": [owner]} | ({"volume-id": [volume]} if volume else {}))

        def fetch(most: int, after: str) -> tuple[list[Ec2Snapshot], str]:
            response = self._call(
                "DescribeSnapshots", OwnerIds=["self"], Filters=ours, MaxResults=most, NextToken=after or None
            )
            return [Ec2Snapshot.read(one) for one in response["Snapshots"]], response.get("NextToken") or ""

        return one_page(fetch, limit, token)

    def delete_snapshot(self, snapshot: str) -> None:
        """Raises NotFound, InUse while a machine image (AMI) depends on it."""
        self._call("DeleteSnapshot", SnapshotId=snapshot)

    def tag(self, ids: Collection[str], tags: Tags) -> None:
        """Set these tags on volumes, snapshots or instances. Raises NotFound."""
        self._call("CreateTags", Resources=list(ids), Tags=tag_list(tags))

    def untag(self, ids: Collection[str], keys: Iterable[str]) -> None:
        """Remove tags, whatever their values. A tag that is not there is no error."""
        self._call("DeleteTags", Resources=list(ids), Tags=[{"Key": key} for key in keys])

    def zones(self) -> dict[str, Ec2Zone]:
        """Return the zones that are available by name, sorted."""
        response = self._call("DescribeAvailabilityZones", Filters=filters({"state": ["available"]}))
        found = {zone["ZoneName"]: Ec2Zone.read(zone) for zone in response["AvailabilityZones"]}
        return dict(sorted(found.items()))

    def metrics(self) -> tuple[Metric, ...]:
        """Return how many calls EC2 has throttled."""
        return self._retries.metrics()

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def _all(self, call: str, items: str, **fields: Any) -> list[dict[str, Any]]:
        """Return what all pages of a response hold under the key `items`."""

        def fetch(token: str) -> tuple[list[dict[str, Any]], str]:
            response = self._call(call, **fields, NextToken=token or None)
            return response[items], response.get("NextToken") or ""

        return every_page(fetch)

    def _search(self, call: str, items: str, key: str, values: list[str], **fields: Any) -> list[dict[str, Any]]:
        """Return the items that EC2 shows with one of these values under the key of a filter."""
        found: list[dict[str, Any]] = []
        for some in chunks(values, MAX_FILTER_VALUES):
            found += self._all(call, items, Filters=filters({key: some}), **fields)
        return found

    def _call(self, call: str, **fields: Any) -> dict[str, Any]:
        """Make a call of botocore_model.CALLS, with the fields that are not None.

        NotFound is no answer to a search with filters, and proves no absence: it becomes Unavailable.
        """
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
        from botocore.parsers import ResponseParserError

        sent = {key: value for key, value in fields.items() if value is not None}
        outcome, deadline = partial(errors.outcome, call), session.call_deadline(self._retry_seconds)
        with self._observe("ec2", call):
            try:
                send = partial(self._session.send, call, sent)
                response: dict[str, Any] = self._retries.call(
                    call, send, (ClientError, BotoCoreError), outcome, deadline
                )
            except ParamValidationError:
                raise  # a bug of this module
            except ClientError as error:  # of this call, or of STS
                failure = errors.from_response(error.operation_name, error.response)
                if "Filters" in fields and isinstance(failure, NotFound):
                    failure = Unavailable(f"{failure}; try again")
                raise failure from error
            except (BotoCoreError, ResponseParserError) as error:
                raise errors.from_botocore(call, error) from error
        return response


def _spec_fields(spec: VolumeSpec) -> dict[str, Any]:
    return {
        "VolumeType": spec.type or None,
        "Size": spec.size or None,
        "Iops": spec.iops,
        "Throughput": spec.throughput,
    }
