"""Calls that tests make to the simulated EC2 through boto3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError

from .fake_ec2 import FakeEc2

ZONE = "eu-west-1a"


def make(cloud: FakeEc2, **more: Any) -> str:
    """Create a volume of 1 GiB and return its id."""
    return str(
        cloud.client().create_volume(**{"Size": 1, "AvailabilityZone": ZONE, "VolumeType": "gp3", **more})["VolumeId"]
    )


def attach(cloud: FakeEc2, volume: str, instance: str, device: str = "/dev/xvdba") -> None:
    cloud.client().attach_volume(VolumeId=volume, InstanceId=instance, Device=device)


def detach(cloud: FakeEc2, volume: str, **more: Any) -> Any:
    return cloud.client().detach_volume(VolumeId=volume, **more)


def look(cloud: FakeEc2, volume: str) -> Any:
    """Describe one volume."""
    (found,) = cloud.client().describe_volumes(VolumeIds=[volume])["Volumes"]
    return found


def state(cloud: FakeEc2, volume: str) -> str:
    return str(look(cloud, volume)["State"])


def attachments(cloud: FakeEc2, volume: str) -> dict[str, str]:
    """Return the state by instance."""
    return {each["InstanceId"]: each["State"] for each in look(cloud, volume)["Attachments"]}


@contextmanager
def refused(code: str, text: str = "") -> Iterator[None]:
    """Expect EC2 to refuse with this code, and with this in its message."""
    with pytest.raises(ClientError) as caught:
        yield
    assert caught.value.response["Error"]["Code"] == code
    assert text in caught.value.response["Error"]["Message"]
