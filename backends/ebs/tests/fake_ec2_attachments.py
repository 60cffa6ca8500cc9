"""Attachments: EC2's rules that moto lacks, several instances per volume, and the states in between."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from . import fake_ec2_moto as moto
from .fake_ec2_calls import Answer, Call, Refusal, answer
from .fake_ec2_clock import NOW
from .fake_ec2_describes import VOLUMES
from .fake_ec2_volumes import volume_of

if TYPE_CHECKING:
    from .fake_ec2_service import Service

MOST_INSTANCES = 16  # of a multi-attach volume


def attach(cloud: Service, call: Call) -> Answer:
    volume, device = volume_of(call), call.get("Device")
    instance = moto.store(call).get_instance_by_id(call.get("InstanceId"))
    if not instance:
        return moto.ask(call)  # moto refuses it
    _check_volume(volume, instance)
    _check_place(volume, instance)
    _check_instance(cloud, instance, device)
    card = _card(instance, call.get("EbsCardIndex", "0"))
    cloud.describes.delay(volume, cloud.takes.showing)
    done = moto.ask(call)
    attachment = volume.held[instance.id]
    if cards_of(instance.instance_type) > 1:
        instance.block_device_mapping[device].ebs_card_index = card  # moto shows what it finds
    _show(attachment, "attaching")
    attached = functools.partial(_attached, cloud, volume, attachment)
    cloud.clock.after(cloud.takes.attaching, VOLUMES.action, attached)
    return done


def detach(cloud: Service, call: Call) -> Answer:
    volume = volume_of(call)
    attachment = _held(volume, call.get("InstanceId"))
    forced = call.get("Force") == "true"
    # What EC2 says to a second DetachVolume is not documented. This answer is the one that is easier to get wrong.
    if attachment.status in ("detaching", "busy") and not forced:
        raise Refusal("IncorrectState", f"Volume '{volume.id}' is in the '{attachment.status}' state.")
    cloud.describes.delay(volume, cloud.takes.showing)
    state = "busy" if volume.id in cloud.busy and not forced else "detaching"
    _show(attachment, state)
    if state == "detaching":
        release = functools.partial(end_attachment, cloud, volume, attachment)
        cloud.clock.after(NOW if forced else cloud.takes.detaching, VOLUMES.action, release)
    return answer(
        "DetachVolume",
        {
            "volumeId": volume.id,
            "instanceId": attachment.instance.id,
            "device": attachment.device,
            "status": state,
            "attachTime": attachment.attach_time.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        },
    )


@functools.cache
def cards_of(instance_type: str) -> int:
    """Return what DescribeInstanceTypes said when moto was made."""
    return int(INSTANCE_TYPES.get(instance_type, {}).get("EbsInfo", {}).get("MaximumEbsCards", 1))


def terminate(cloud: Service, call: Call) -> Answer:
    """TerminateInstances: EC2 detaches what the instances held."""
    for volume in list(moto.store(call).volumes.values()):
        for instance in call.many("InstanceId"):
            if instance in volume.held and not volume.root:
                end_attachment(cloud, volume, volume.held[instance])
    return moto.ask(call)


def end_attachment(cloud: Service, volume: moto.Volume, attachment: Any) -> None:
    """End an attachment, unless it has ended."""
    instance = attachment.instance
    if not volume.holds(attachment):
        return
    del volume.held[instance.id]
    instance.block_device_mapping.pop(attachment.device, None)
    attachment.status = "detached"
    cloud.call_hook(cloud.on_detached, volume.id, instance.id, attachment.device)


def _attached(cloud: Service, volume: moto.Volume, attachment: Any) -> None:
    if attachment.status == "attaching" and volume.holds(attachment):
        _show(attachment, "attached")
        cloud.call_hook(cloud.on_attached, volume.id, attachment.instance.id, attachment.device)


def _show(attachment: Any, state: str) -> None:
    """Let describes of the volume and of the instance say this."""
    attachment.status = state
    attachment.instance.block_device_mapping[attachment.device].status = state


def _held(volume: moto.Volume, instance: str) -> Any:
    """Return the attachment to this instance, or the only one."""
    if not volume.held:
        raise Refusal("IncorrectState", f"Volume '{volume.id}' is in the '{volume.status}' state.")
    if not instance and len(volume.held) > 1:
        raise Refusal("InvalidParameterCombination", f"Name the instance: '{volume.id}' is attached to several.")
    attachment: Any = volume.held.get(instance or next(iter(volume.held)))
    if not attachment:
        text = f"The volume '{volume.id}' is not attached to instance '{instance}'."
        raise Refusal("InvalidAttachment.NotFound", text)
    return attachment


def _check_volume(volume: moto.Volume, instance: Any) -> None:
    if volume.phase:
        raise Refusal("IncorrectState", f"{volume.id} is not 'available'.")
    if instance.id in volume.held or (volume.held and not volume.multi_attach_enabled):
        raise Refusal("VolumeInUse", f"{volume.id} is already attached to an instance")
    if len(volume.held) >= MOST_INSTANCES:
        raise Refusal("VolumeInUse", f"{volume.id} is attached to {MOST_INSTANCES} instances already")
    if volume.availability_zone != instance._placement.zone:
        text = f"The volume '{volume.id}' is not in the same availability zone as instance '{instance.id}'"
        raise Refusal("InvalidVolume.ZoneMismatch", text)


def _check_place(volume: moto.Volume, instance: Any) -> None:
    if volume.outpost_arn != getattr(instance, "outpost_arn", None):
        raise Refusal("InvalidParameterValue", f"'{volume.id}' and '{instance.id}' are not on the same Outpost.")


def _card(instance: Any, text: str) -> int:
    cards = cards_of(instance.instance_type)
    if int(text) not in range(cards):
        raise Refusal(
            "InvalidParameterValue", f"EbsCardIndex '{text}': {instance.instance_type} has {cards} EBS cards."
        )
    return int(text)


def _check_instance(cloud: Service, instance: Any, device: str) -> None:
    if instance._state.name not in ("running", "stopped"):
        raise Refusal("IncorrectState", f"Instance '{instance.id}' is not 'running'.")
    if device in instance.block_device_mapping:
        text = f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use"
        raise Refusal("InvalidParameterValue", text)
    most = cloud.limits.attachments
    if most is not None and len(instance.block_device_mapping) - 1 >= most:
        text = f"Instance '{instance.id}' has reached its limit of {most} attachments."
        raise Refusal("AttachmentLimitExceeded", text)
