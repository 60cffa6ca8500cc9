"""moto without its web server: its EC2 and STS are called directly, and its model is corrected.

Volumes can have several attachments and begin in the state that EC2 answers with; the caller of moto sets the next
states. moto's images, of which it would read thousands, are left out.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from .fake_ec2_calls import Answer, Call

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # moto asks for it whenever it makes a region

from moto.core import responses, utils
from moto.core.request import Request
from moto.ec2.models import ec2_backends, elastic_block_store
from moto.ec2.responses import EC2Response
from moto.iam.models import get_account_id_from
from moto.sts.responses import TokenResponse

DISPATCH = {"ec2": EC2Response, "sts": TokenResponse}
CHANGEABLE = ("size", "volume_type", "iops", "throughput")
GP3 = {"Iops": "3000", "Throughput": "125"}
lock = threading.RLock()  # moto's state is one for the whole process
born: list[Any] = []  # volumes and snapshots that moto made since somebody looked


def own_tags(resource: Any) -> list[dict[str, str]]:
    """Return a resource's tags; moto looks through those of all resources."""
    return [{"key": key, "value": value} for key, value in resource.ec2_backend.tags.get(resource.id, {}).items()]


class Volume(elastic_block_store.Volume):
    """A volume with as many attachments as it has, and a state of its own while it has none of EC2's usual two."""

    def __init__(self, *words: Any, **more: Any) -> None:
        self.held: dict[str, Any] = {}  # instance id -> attachment
        self.phase = "creating"  # "", error, deleting
        self.root = False
        self.changed: list[float] = []  # when it was modified
        self.source_volume_id: str | None = None
        self.volume_initialization_rate: str | None = None
        self.outpost_arn: str | None = None
        self.blocks: dict[int, bytes] = {}  # what was written, by the number of the block (fake_ebs_blocks.py)
        super().__init__(*words, **more)
        born.append(self)

    get_tags = own_tags

    @property
    def attachment(self) -> Any:
        """The latest one: moto thinks there is only one."""
        return next(reversed(self.held.values()), None)

    @attachment.setter
    def attachment(self, attachment: Any) -> None:
        if attachment:
            self.held[attachment.instance.id] = attachment
        else:
            self.held = {key: each for key, each in self.held.items() if each.status != "detached"}

    def holds(self, attachment: Any) -> bool:
        return any(each is attachment for each in self.held.values())

    @property
    def attachments(self) -> list[Any]:
        return list(self.held.values())

    @property
    def status(self) -> str:
        return self.phase or ("in-use" if self.held else "available")


class Snapshot(elastic_block_store.Snapshot):
    """A snapshot of the volume as it was."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.volume = copy.copy(self.volume)
        self.blocks = dict(self.volume.blocks)
        self.outpost_arn: str | None = None
        self.status = "pending"
        born.append(self)

    get_tags = own_tags

    @property
    def progress(self) -> str:
        return "100%" if self.status == "completed" else "0%"


class VolumeModification(elastic_block_store.VolumeModification):
    """A change that tells all of what was and what will be, and is not done at once."""

    modification_state = "modifying"
    progress = 0

    def __init__(self, volume: Volume, **targets: Any) -> None:
        before = {name: getattr(volume, name) for name in CHANGEABLE}
        super().__init__(volume, **targets)
        self.end_time = None  # type: ignore[assignment]  # until it is done
        after = {name: targets.get(f"target_{name}") or before[name] for name in CHANGEABLE}
        for name in CHANGEABLE:
            setattr(self, f"original_{name}", before[name])
            setattr(self, f"target_{name}", after[name])
        if after["volume_type"] != "gp3":
            self.target_throughput = None
            if after["volume_type"] not in ("io1", "io2"):
                self.target_iops = None
        else:
            self.target_iops = after["iops"] or int(GP3["Iops"])
            self.target_throughput = after["throughput"] or int(GP3["Throughput"])


# A quarter of each call's time.
responses.method_names_from_class = functools.cache(utils.method_names_from_class)  # type: ignore[attr-defined]
elastic_block_store.Volume = Volume  # type: ignore[misc]
elastic_block_store.Snapshot = Snapshot  # type: ignore[misc]
elastic_block_store.VolumeModification = VolumeModification  # type: ignore[assignment,misc]


def account_of(access_key: str) -> str:
    return get_account_id_from(access_key)


def store(call: Call) -> Any:
    """Return moto's model of this account and region."""
    return ec2_backends[call.account][call.region]


def stores() -> Iterator[Any]:
    for account in list(ec2_backends.values()):
        yield from list(account.values())


def forget() -> None:
    """Delete everything in all accounts."""
    ec2_backends.reset()
    born.clear()


MADE = {"CreateVolume": ("volumeId", "createTime"), "CreateSnapshot": ("snapshotId", "startTime")}


def ask(call: Call) -> Answer:
    """Return moto's response."""
    headers = {
        "Content-Type": "application/x-www-form-urlencoded; charset=utf-8",
        "Authorization": f"AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/20200101/{call.region}/{call.service}/aws4_request,",
        "x-moto-account-id": call.account,
    }
    request = Request.from_primitives("POST", "http://127.0.0.1/", headers, call.body)
    status, _headers, body = DISPATCH[call.service].dispatch(request, request.raw_url, request.headers)
    text = body if isinstance(body, str) else body.decode()
    return Answer(_to_the_millisecond(call, text).encode(), int(status))


def _to_the_millisecond(call: Call, text: str) -> str:
    """Give a creation's answer the time that describes show: moto leaves out what is less than a second."""
    made = MADE.get(call.action)
    id = made and re.search(rf"<{made[0]}>([^<]+)<", text)
    if not made or not id:
        return text
    region = store(call)
    each = region.volumes.get(id[1]) or region.snapshots.get(id[1])
    time = getattr(each, "create_time", None) or getattr(each, "start_time", None)
    return re.sub(rf"(<{made[1]}>)[^<]+", rf"\g<1>{shown_time(time)}", text) if time else text


def shown_time(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z"


def as_it_is(call: Call, volume: Volume) -> Answer:
    """Return a creation's answer for a volume that exists."""
    region = store(call)
    region.create_volume = lambda **_parameters: volume
    try:
        return ask(call.but({"Action": "CreateVolume"}, without="TagSpecification"))
    finally:
        del region.create_volume
