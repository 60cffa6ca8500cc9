"""EC2's calls: the only module that makes them. Answers come as rows, failures as errors of the contract.

Which error code is which error stands in ec2_errors.py. Nothing is imported or asked for before the
first call. What EC2 has not made visible yet is not there: callers that know better come back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from csi_multi.contract import UNOBSERVED, Observer

from . import ec2_errors, ec2_many, ec2_rows, models, patience
from .config import Config
from .ec2_many import literal
from .rows import INSTANCE, SNAPSHOT, VOLUME, Attachment, InstanceRow, ModificationRow, SnapshotRow, Tags, VolumeRow
from .session import Session
from .tags import OWNER
from .types import Spec

BY_ID = 500  # ids per call
VALUES = 190  # values of a filter; EC2 takes 200 in one request, the owner's included


class Ec2:
    """EC2 of one account and region. Thread-safe. Every method raises errors of csi_multi.contract.errors."""

    def __init__(self, config: Config, session: str = "csi-multi", observe: Observer = UNOBSERVED) -> None:
        """Keep the configuration; `session` names the role session in CloudTrail, where a role is assumed.

        `observe` is told of every call, with botocore's retries of it in one.
        """
        self._session = Session(config, session)
        self._observe = observe
        self._listens = config.wait_seconds

    def create_volume(
        self,
        *,
        spec: Spec,
        zone: str,
        token: str,
        tags: Tags,
        snapshot: str = "",
        encrypted: bool | None = None,
        kms_key: str = "",
        multi_attach: bool = False,
        rate: int | None = None,
    ) -> VolumeRow:
        """Make a volume, empty or of a snapshot; `rate` is the initialization rate in MiB/s.

        With a token that was used it returns the volume of then, as it is now or as it was. Raises
        TokenMismatch, Quota, ZoneFull, InvalidArgument, NotFound for the snapshot.
        """
        answer = self._call(
            "CreateVolume",
            AvailabilityZone=zone,
            SnapshotId=snapshot or None,
            Encrypted=encrypted,
            KmsKeyId=kms_key or None,
            VolumeInitializationRate=rate,
            **_made(spec, token, tags, multi_attach),
        )
        return ec2_rows.volume(answer)

    def copy_volume(
        self,
        *,
        source: str,
        spec: Spec,
        token: str,
        tags: Tags,
        encrypted: bool | None = None,
        kms_key: str = "",
        multi_attach: bool = False,
    ) -> VolumeRow:
        """Make a volume with the data that another has now, in its zone. Raises as create_volume does."""
        answer = self._call(
            "CopyVolumes",
            SourceVolumeId=source,
            Encrypted=encrypted,
            KmsKeyId=kms_key or None,
            **_made(spec, token, tags, multi_attach),
        )
        return ec2_rows.volume(answer["Volumes"][0])

    def volumes(self, ids: Collection[str]) -> dict[str, VolumeRow]:
        """Return those that exist. An id of another shape is never sent."""

        def fetch(some: list[str]) -> list[VolumeRow]:
            return [ec2_rows.volume(one) for one in self._all("DescribeVolumes", "Volumes", VolumeIds=some)]

        return {row.id: row for row in ec2_many.existing(_shaped(VOLUME, ids), fetch, BY_ID)}

    def volumes_tagged(self, key: str, values: Collection[str], owner: str) -> list[VolumeRow]:
        """Return the owner's volumes whose tag `key` has one of these values."""
        found: list[VolumeRow] = []
        for some in ec2_many.chunks(values, VALUES):
            filters = _filters({f"tag:{OWNER}": [owner], f"tag:{key}": some})
            told = self._all("DescribeVolumes", "Volumes", Filters=filters, MaxResults=ec2_many.MOST)
            found += [ec2_rows.volume(one) for one in told]
        return found

    def volume_page(self, owner: str, limit: int, token: str) -> tuple[list[VolumeRow], str]:
        """Return some of the owner's volumes, and the token for the next page. Raises InvalidToken."""
        filters = _filters({f"tag:{OWNER}": [owner]})

        def fetch(most: int, after: str) -> tuple[list[VolumeRow], str]:
            answer = self._call("DescribeVolumes", Filters=filters, MaxResults=most, NextToken=after or None)
            return [ec2_rows.volume(one) for one in answer["Volumes"]], answer.get("NextToken") or ""

        return ec2_many.page(fetch, limit, token)

    def delete_volume(self, volume: str) -> None:
        """Raises NotFound, Attached."""
        self._call("DeleteVolume", VolumeId=volume)

    def attach(self, volume: str, instance: str, device: str) -> Attachment:
        """Begin to attach. Raises NotFound for either, Attached, DeviceTaken, Full, WrongState."""
        answer = self._call("AttachVolume", VolumeId=volume, InstanceId=instance, Device=device)
        return ec2_rows.attachment(answer)

    def detach(self, volume: str, instance: str) -> None:
        """Begin to detach. Raises NotFound for either, WrongState when it is not attached there."""
        self._call("DetachVolume", VolumeId=volume, InstanceId=instance)

    def instances(self, ids: Collection[str]) -> dict[str, InstanceRow]:
        """Return those that exist; terminated ones do for an hour. An id of another shape is never sent."""

        def fetch(some: list[str]) -> list[InstanceRow]:
            told = self._all("DescribeInstances", "Reservations", InstanceIds=some)
            return [ec2_rows.instance(one) for reservation in told for one in reservation["Instances"]]

        return {row.id: row for row in ec2_many.existing(_shaped(INSTANCE, ids), fetch, BY_ID)}

    def modify(self, volume: str, spec: Spec) -> ModificationRow:
        """Begin to change what the spec names; size 0: not the size. Raises NotFound, Cooldown, WrongState."""
        answer = self._call("ModifyVolume", VolumeId=volume, **_wanted(spec))
        return ec2_rows.modification(answer["VolumeModification"])

    def modifications(self, ids: Collection[str]) -> dict[str, ModificationRow]:
        """Return the last modification of each volume that had one."""

        def fetch(some: list[str]) -> list[dict[str, Any]]:
            return self._all("DescribeVolumesModifications", "VolumesModifications", VolumeIds=some)

        told = ec2_many.existing(_shaped(VOLUME, ids), fetch, BY_ID)
        return {one["VolumeId"]: ec2_rows.modification(one) for one in told}

    def create_snapshot(self, volume: str, tags: Tags, description: str) -> SnapshotRow:
        """Cut a snapshot. EC2 has no token for it, so it is sent once: after Unavailable or Timeout look for it."""
        answer = self._call(
            "CreateSnapshot",
            VolumeId=volume,
            Description=description,
            TagSpecifications=_specification("snapshot", tags),
        )
        return ec2_rows.snapshot(answer)

    def snapshots(self, ids: Collection[str]) -> dict[str, SnapshotRow]:
        """Return those that exist. An id of another shape is never sent."""

        def fetch(some: list[str]) -> list[SnapshotRow]:
            return [ec2_rows.snapshot(one) for one in self._all("DescribeSnapshots", "Snapshots", SnapshotIds=some)]

        return {row.id: row for row in ec2_many.existing(_shaped(SNAPSHOT, ids), fetch, BY_ID)}

    def snapshots_tagged(self, key: str, values: Collection[str], owner: str) -> list[SnapshotRow]:
        """Return the owner's snapshots whose tag `key` has one of these values."""
        found: list[SnapshotRow] = []
        for some in ec2_many.chunks(values, VALUES):
            filters = _filters({f"tag:{OWNER}": [owner], f"tag:{key}": some})
            told = self._all(
                "DescribeSnapshots", "Snapshots", OwnerIds=["self"], Filters=filters, MaxResults=ec2_many.MOST
            )
            found += [ec2_rows.snapshot(one) for one in told]
        return found

    def snapshot_page(self, owner: str, limit: int, token: str, volume: str = "") -> tuple[list[SnapshotRow], str]:
        """Return some of the owner's snapshots (of one volume), and the next page's token. Raises InvalidToken."""
        wanted = {f"tag:{OWNER}": [owner]} | ({"volume-id": [volume]} if volume else {})
        filters = _filters(wanted)

        def fetch(most: int, after: str) -> tuple[list[SnapshotRow], str]:
            answer = self._call(
                "DescribeSnapshots", OwnerIds=["self"], Filters=filters, MaxResults=most, NextToken=after or None
            )
            return [ec2_rows.snapshot(one) for one in answer["Snapshots"]], answer.get("NextToken") or ""

        return ec2_many.page(fetch, limit, token)

    def delete_snapshot(self, snapshot: str) -> None:
        """Raises NotFound, InUse while an image depends on it."""
        self._call("DeleteSnapshot", SnapshotId=snapshot)

    def fast_restore(self, snapshot: str, zones: Collection[str]) -> None:
        """Ask for volumes of this snapshot to be fast at once, in these zones. Raises the first refusal."""
        answer = self._call("EnableFastSnapshotRestores", SourceSnapshotIds=[snapshot], AvailabilityZones=list(zones))
        for unmade in answer.get("Unsuccessful", ()):
            for refusal in unmade.get("FastSnapshotRestoreStateErrors", ()):
                raise ec2_errors.refused("EnableFastSnapshotRestores", {**answer, **refusal})

    def tag(self, ids: Collection[str], tags: Tags) -> None:
        """Set these tags on volumes, snapshots or instances. Raises NotFound."""
        self._call("CreateTags", Resources=list(ids), Tags=_tags(tags))

    def untag(self, ids: Collection[str], keys: Iterable[str]) -> None:
        """Remove tags, whatever their values. One that is not there is fine."""
        self._call("DeleteTags", Resources=list(ids), Tags=[{"Key": key} for key in keys])

    def zones(self) -> dict[str, str]:
        """Return the zones that can be used, sorted, each with its type."""
        answer = self._call("DescribeAvailabilityZones", Filters=_filters({"state": ["available"]}))
        found = {zone["ZoneName"]: zone.get("ZoneType", "") for zone in answer["AvailabilityZones"]}
        return dict(sorted(found.items()))

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def _all(self, call: str, of: str, **words: Any) -> list[dict[str, Any]]:
        """Return what all pages of an answer hold under `of`."""

        def fetch(token: str) -> tuple[list[dict[str, Any]], str]:
            answer = self._call(call, **words, NextToken=token or None)
            return answer[of], answer.get("NextToken") or ""

        return ec2_many.every(fetch)

    def _call(self, call: str, **words: Any) -> dict[str, Any]:
        """Make a call, with the words that are not None. Its name is EC2's, and stands in models.CALLS."""
        from botocore import xform_name
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
        from botocore.parsers import ResponseParserError

        with self._observe("ec2", call), patience.call(self._listens):
            try:
                client = self._session.client(models.CALLS[call])
                method = getattr(client, xform_name(call))
                told: dict[str, Any] = method(**{key: word for key, word in words.items() if word is not None})
            except ParamValidationError:
                raise  # a bug of ours
            except ClientError as error:  # of this call, or of STS
                raise ec2_errors.refused(error.operation_name, error.response) from error
            except (BotoCoreError, ResponseParserError) as error:
                raise ec2_errors.failed(call, error) from error
            return told


def _shaped(shape: re.Pattern[str], ids: Collection[str]) -> list[str]:
    return [one for one in ids if shape.fullmatch(one)]


def _made(spec: Spec, token: str, tags: Tags, multi_attach: bool) -> dict[str, Any]:
    """What CreateVolume and CopyVolumes are told alike."""
    return _wanted(spec) | {
        "ClientToken": token,
        "MultiAttachEnabled": multi_attach or None,
        "TagSpecifications": _specification("volume", tags),
    }


def _wanted(spec: Spec) -> dict[str, Any]:
    return {"VolumeType": spec.type, "Size": spec.size or None, "Iops": spec.iops, "Throughput": spec.throughput}


def _specification(resource: str, tags: Tags) -> list[dict[str, Any]]:
    return [{"ResourceType": resource, "Tags": _tags(tags)}]


def _tags(tags: Tags) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _filters(wanted: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [{"Name": name, "Values": [literal(value) for value in values]} for name, values in wanted.items()]
