"""ModifyVolume: one change at a time, few per day, never smaller, and applied step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moto.core.utils import utcnow

from . import fake_ec2_moto as moto
from .fake_ec2_calls import Answer, Call, Refusal
from .fake_ec2_volumes import volume_of

if TYPE_CHECKING:
    from .fake_ec2_service import Service

DESCRIBE = "DescribeVolumesModifications"
DAY = 24 * 3600.0


def modify(cloud: Service, call: Call) -> Answer:
    volume = volume_of(call)
    if volume.phase:
        raise Refusal("IncorrectState", f"The volume '{volume.id}' is in the '{volume.phase}' state.")
    _check(cloud, volume, call)
    done = moto.ask(call)
    if done.status != 200:
        return done
    volume.changed.append(cloud.clock.now())
    change = volume.modifications[-1]
    volume.modifications[:] = [change]  # EC2 tells of the latest only
    _go_on(cloud, volume, change)
    return done


def describe(cloud: Service, call: Call) -> Answer:
    cloud.clock.looked(DESCRIBE)
    volumes = [volume_of(call, id) for id in call.many("VolumeId")]
    for volume in volumes:
        if not volume.modifications:
            # It names one of them, whatever was asked.
            text = f"Modification for volume '{volume.id}' does not exist."
            raise Refusal("InvalidVolumeModification.NotFound", text)
    return moto.ask(call)


def _check(cloud: Service, volume: moto.Volume, call: Call) -> None:
    state = volume.modifications[-1].modification_state if volume.modifications else "completed"
    if state != "completed":
        text = f"Cannot modify volume {volume.id}: it is currently in the {state.upper()} state."
        raise Refusal("IncorrectModificationState", text)
    recent = [then for then in volume.changed if cloud.clock.now() - then < DAY]
    if len(recent) >= cloud.limits.modifications:
        text = "You've reached the maximum modification rate per volume limit. Wait before the next modification."
        raise Refusal("VolumeModificationRateExceeded", text)
    if int(call.get("Size", str(volume.size))) < volume.size:
        raise Refusal("InvalidParameterValue", "New size cannot be smaller than existing size")


def _go_on(cloud: Service, volume: moto.Volume, change: Any) -> None:
    """Let the volume be as it was while the change is `modifying`, then new but `optimizing`, then done."""
    for name in moto.CHANGEABLE:
        setattr(volume, name, getattr(change, f"original_{name}"))

    def modified() -> None:
        for name in moto.CHANGEABLE:
            setattr(volume, name, getattr(change, f"target_{name}"))
        change.modification_state, change.progress = "optimizing", 50
        cloud.clock.after(cloud.takes.optimizing, DESCRIBE, optimized)
        cloud.call_hook(cloud.on_modified, volume.id, volume.size)

    def optimized() -> None:
        change.modification_state, change.progress = "completed", 100
        change.end_time = utcnow()

    cloud.clock.after(cloud.takes.modifying, DESCRIBE, modified)
