"""Take over EBS volumes that were made without the driver: their tags say from then on whose they are."""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import AlreadyExists, FailedPrecondition, InUse, InvalidArgument, Stamp, missing, not_imported

from . import tags
from .account import GOING, Account
from .making import Making
from .rows import VOLUME, VolumeRow
from .tag_rules import MOST

# Tags of what another driver deletes when its own PersistentVolume is deleted.
OTHERS = {"ebs.csi.aws.com/cluster": "aws-ebs-csi-driver", "CSIVolumeName": "a CSI driver"}


class Importer:
    def __init__(self, account: Account, making: Making) -> None:
        self._account = account
        self._making = making

    def take(self, id: str, stamp: Stamp) -> VolumeRow:
        """Tag the volume, in one call, or find it tagged. Raises what Import.import_volume says."""
        row = self._look(id)
        wanted = tags.of_import(stamp, self._account.setting, self._account.config)
        if tags.stamp(row.tags) == stamp and tags.ours(row.tags, self._account.setting):
            return row
        _refuse_owned(row)
        _refuse_busy(row)
        if other := self._making.named(stamp.name):
            raise AlreadyExists(f"volume {other.id!r} has the name {stamp.name!r} already; choose another")
        if len({**row.tags, **wanted}) > MOST:
            raise FailedPrecondition(f"volume {id!r} would have more than {MOST} tags; take some off")
        self._account.ec2.tag([id], wanted)
        return replace(row, tags={**row.tags, **wanted})

    def release(self, row: VolumeRow) -> str:
        """Take the driver's tags off. Raises what Import.release_volume says."""
        stamp = self._account.stamp("volume", row)
        if not stamp.imported:
            raise not_imported(row.id)
        if row.attachments:
            raise _in_use(row)
        keys = tags.of_import(stamp, self._account.setting, self._account.config)
        self._account.ec2.untag([row.id], keys)
        return row.id

    def _look(self, id: str) -> VolumeRow:
        if not VOLUME.fullmatch(id):
            raise InvalidArgument(f"{id!r} is not the id of an EBS volume, such as vol-0123456789abcdef0")
        row = self._account.volumes.get(id, self._account.ends(None))
        if row is None or row.state in GOING:
            raise missing("volume", id)
        return row


def _refuse_owned(row: VolumeRow) -> None:
    """Raise AlreadyExists or FailedPrecondition for what a driver has made, or has taken over."""
    if owner := row.tags.get(tags.OWNER):
        raise AlreadyExists(f"volume {row.id!r} belongs to {owner!r} already (its tag {tags.OWNER!r})")
    if key := next((key for key in OTHERS if key in row.tags), ""):
        raise FailedPrecondition(
            f"volume {row.id!r} belongs to {OTHERS[key]} (its tag {key!r}), which deletes it by its own rules: set its "
            "PersistentVolume to Retain, delete that, and take the tag off"
        )


def _refuse_busy(row: VolumeRow) -> None:
    if row.attachments:
        raise _in_use(row)
    if row.state != "available":
        raise FailedPrecondition(f"volume {row.id!r} is {row.state}; only one that is available can be imported")


def _in_use(row: VolumeRow) -> InUse:
    where = ", ".join(one.instance for one in row.attachments)
    return InUse(f"volume {row.id!r} is attached to {where}; detach it first")
