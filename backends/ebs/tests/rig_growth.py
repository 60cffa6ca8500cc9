"""What becomes of volumes and snapshots once the answer says that they are being made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import rig_moto as moto
from .rig_calls import Call
from .rig_describes import SNAPSHOTS, VOLUMES

if TYPE_CHECKING:
    from .rig_service import Service


def begin(cloud: Service, call: Call, made: Any) -> None:
    """Let what a call made grow up: it appears, and after a while it can be used."""
    if call.action == "RunInstances":
        made.phase, made.root = "", True
        for attachment in made.attachments:
            attachment.instance.block_device_mapping[attachment.device].status = "attached"
    elif isinstance(made, moto.Volume):
        _volume(cloud, made, moto.store(call))
    else:
        _snapshot(cloud, made)


def _volume(cloud: Service, volume: moto.Volume, place: Any) -> None:
    fate = cloud.dooms.popleft() if cloud.dooms else ""

    def grown() -> None:
        if fate == "vanish":
            place.volumes.pop(volume.id, None)
        else:
            volume.phase = fate

    cloud.describes.hide(volume.id, VOLUMES, cloud.takes.appearing)
    cloud.clock.after(cloud.takes.creating, VOLUMES.action, grown)
    cloud.tell(cloud.on_created, volume.id, volume.snapshot_id or volume.source_volume_id or "")


def _snapshot(cloud: Service, snapshot: moto.Snapshot) -> None:
    def grown() -> None:
        snapshot.status = "completed"

    cloud.describes.hide(snapshot.id, SNAPSHOTS, cloud.takes.appearing)
    cloud.clock.after(cloud.takes.snapshot, SNAPSHOTS.action, grown)
    cloud.tell(cloud.on_snapshot, snapshot.id, snapshot.volume.id)
