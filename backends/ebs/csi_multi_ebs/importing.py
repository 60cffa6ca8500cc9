"""Import EBS volumes that were created by hand, by tagging them, and release them again."""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import AlreadyExists, FailedPrecondition, InUse, InvalidArgument, Stamp, missing, not_imported

from . import labels
from .ec2_cache import DELETED_STATES, Ec2Cache
from .resources import VOLUME_ID, Ec2Volume
from .user_tags import MAX_TAGS
from .volumes import VolumeManager

# Tags of volumes that another driver deletes together with their PersistentVolume.
OTHER_DRIVERS = {"ebs.csi.aws.com/cluster": "aws-ebs-csi-driver", "CSIVolumeName": "a CSI driver"}


class Importer:
    def __init__(self, cache: Ec2Cache, volumes: VolumeManager) -> None:
        self._cache = cache
        self._volumes = volumes

    def import_volume(self, id: str, stamp: Stamp) -> Ec2Volume:
        """Tag the volume, in one call, or find an earlier import. Raises what Import.import_volume says."""
        cache = self._cache
        volume = self._find(id)
        tags = labels.import_tags(stamp, cache.setting, cache.config)
        if labels.read_stamp(volume.tags) == stamp and labels.is_ours(volume.tags, cache.setting):
            return volume
        _refuse_owned(volume)
        _refuse_busy(volume)
        if other := self._volumes.named(stamp.name):
            raise AlreadyExists(f"volume {stamp.name!r} already exists as {other.id!r}; choose another name")
        if len({**volume.tags, **tags}) > MAX_TAGS:
            raise FailedPrecondition(f"volume {id!r} would have more than {MAX_TAGS} tags; remove some of its own")
        cache.client.tag([id], tags)
        return replace(volume, tags={**volume.tags, **tags})

    def release(self, handle: str) -> str:
        """Remove the driver's tags and return the volume's id. Raises what Import.release_volume says."""
        volume = self._cache.volume(handle)
        stamp = self._cache.stamp("volume", volume)
        if not stamp.imported:
            raise not_imported(volume.id)
        if volume.attachments:
            raise _attached(volume)
        keys = labels.import_tags(stamp, self._cache.setting, self._cache.config)
        self._cache.client.untag([volume.id], keys)
        return volume.id

    def _find(self, id: str) -> Ec2Volume:
        if not VOLUME_ID.fullmatch(id):
            raise InvalidArgument(f"{id!r} is not the id of an EBS volume; give one such as vol-0123456789abcdef0")
        volume = self._cache.volumes.get(id, self._cache.wait_deadline(None))
        if volume is None or volume.state in DELETED_STATES:
            raise missing("volume", id)
        return volume


def _refuse_owned(volume: Ec2Volume) -> None:
    """Raise AlreadyExists or FailedPrecondition for a volume that a driver created or imported."""
    if owner := volume.tags.get(labels.OWNER):
        raise AlreadyExists(
            f"volume {volume.id!r} already belongs to {owner!r} (its tag {labels.OWNER!r}); release it there first"
        )
    if key := next((key for key in OTHER_DRIVERS if key in volume.tags), ""):
        raise FailedPrecondition(
            f"volume {volume.id!r} belongs to {OTHER_DRIVERS[key]} (its tag {key!r}), which may delete it: set its "
            "PersistentVolume to Retain, delete the PersistentVolume, and remove the tag"
        )


def _refuse_busy(volume: Ec2Volume) -> None:
    if volume.attachments:
        raise _attached(volume)
    if volume.state != "available":
        raise FailedPrecondition(f"volume {volume.id!r} is {volume.state}; only an available volume can be imported")


def _attached(volume: Ec2Volume) -> InUse:
    instances = ", ".join(one.instance for one in volume.attachments)
    return InUse(f"volume {volume.id!r} is attached to {instances}; detach it first")
