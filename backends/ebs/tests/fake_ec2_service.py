"""How a call is answered: faults first, then EC2's rules and moto, then hooks, then faults that hide the effect."""

from __future__ import annotations

import functools
import re
from collections import Counter, deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from . import (
    fake_aws_services,
    fake_ebs_blocks,
    fake_ec2_attachments,
    fake_ec2_modifications,
    fake_ec2_moto,
    fake_ec2_snapshots,
    fake_ec2_volumes,
)
from .fake_ec2_calls import Answer, Call, Dropped, Refusal, refused
from .fake_ec2_clock import Clock, Takes
from .fake_ec2_describes import SNAPSHOTS, VOLUMES, Describes
from .fake_ec2_faults import Faults
from .fake_ec2_health import Checks
from .fake_ec2_moto import lock
from .fake_ec2_server import Ec2Server
from .fake_ec2_volumes import Limits, Tokens

REGION = "eu-west-1"
CREDENTIAL = re.compile(r"Credential=(?P<key>[^/]+)/[^/]+/(?P<region>[^/]+)/(?P<service>[^/]+)/")

Rule = Callable[["Service", Call], Answer]
RULES: dict[str, Rule] = {
    "CreateVolume": fake_ec2_volumes.create,
    "CopyVolumes": fake_ec2_volumes.copy,
    "DeleteVolume": fake_ec2_volumes.delete,
    "DescribeVolumes": lambda cloud, call: cloud.describes.describe(call, VOLUMES),
    "DescribeVolumeStatus": fake_ec2_volumes.describe_status,
    "DescribeInstanceStatus": fake_ec2_volumes.describe_instance_status,
    "ModifyVolume": fake_ec2_modifications.modify,
    "DescribeVolumesModifications": fake_ec2_modifications.describe,
    "AttachVolume": fake_ec2_attachments.attach,
    "DetachVolume": fake_ec2_attachments.detach,
    "CreateTags": fake_ec2_volumes.tag,
    "TerminateInstances": fake_ec2_attachments.terminate,
    "CreateSnapshot": fake_ec2_snapshots.create,
    "CreateSnapshots": fake_ec2_snapshots.create_many,
    "DeleteSnapshot": fake_ec2_snapshots.delete,
    "DescribeSnapshots": lambda cloud, call: cloud.describes.describe(call, SNAPSHOTS),
    "LockSnapshot": fake_ec2_snapshots.lock,
    "DescribeLockedSnapshots": fake_ec2_snapshots.describe_locked,
    "EnableFastSnapshotRestores": fake_ec2_snapshots.enable_fast_restores,
    "ListSnapshotBlocks": fake_ebs_blocks.snapshot_blocks,
    "ListChangedBlocks": fake_ebs_blocks.changed_blocks,
}


class Service:
    """EC2, STS and Service Quotas, empty at first. Tests may use all names without an underscore."""

    def __init__(self, ec2_server: Ec2Server) -> None:
        self.endpoint = f"http://127.0.0.1:{ec2_server.server_port}"
        self.region = REGION
        self.takes = Takes()
        self.limits = Limits()
        self.busy: set[str] = set()  # volumes in use by their guest: detached by force only
        self.trust: dict[str, str] = {}  # role -> the external id it asks for
        self.quotas = dict(fake_aws_services.USUAL)  # by code
        self.quotas_per_page = fake_aws_services.LARGEST_PAGE
        self.fast_restores: dict[str, set[str]] = {}  # snapshot -> zones
        self.initializing: dict[str, tuple[int, int | None]] = {}  # volume -> percent, seconds left
        self.locks: dict[str, dict[str, str]] = {}  # snapshot -> what DescribeLockedSnapshots says of it
        self.health = Checks()
        self.block_pages = fake_ebs_blocks.Pages()
        # Called before the answer goes out, and without a lock: a guest's disk comes and goes here.
        self.on_created: Callable[[str, str], object] | None = None  # volume, the snapshot or volume it is made from
        self.on_deleted: Callable[[str], object] | None = None  # volume
        self.on_attached: Callable[[str, str, str], object] | None = None  # volume, instance, device name
        self.on_detached: Callable[[str, str, str], object] | None = None
        self.on_modified: Callable[[str, int], object] | None = None  # volume, GiB
        self.on_snapshot: Callable[[str, str], object] | None = None  # snapshot, volume
        # To be read.
        self.calls: Counter[str] = Counter()
        self.seen: deque[Call] = deque(maxlen=10_000)
        self.internal_errors: list[BaseException] = []  # of the simulation, or of a hook: always a bug in the tests
        # Parts, for the rules.
        self.clock = Clock()
        self.describes: Describes = Describes(self.clock)
        self.tokens = Tokens()
        self._faults = Faults()
        self.planned_failures: deque[str] = deque()
        self._afterwards: list[Callable[[], object]] = []
        self._ended = False
        with lock:
            fake_ec2_moto.forget()
        ec2_server.serve = self._serve

    def end(self) -> None:
        """Drop the calls that still wait, and delete everything."""
        self._ended = True
        self._faults.end()
        with lock:
            fake_ec2_moto.forget()

    def call_hook(self, hook: Callable[..., object] | None, *words: object) -> None:
        """Call a test's hook after the lock is released and before the response is sent."""
        if hook:
            self._afterwards.append(functools.partial(hook, *words))

    def _serve(self, body: bytes, authorization: str) -> Answer:
        scope = CREDENTIAL.search(authorization)
        if not scope:
            return refused("ec2", Refusal("AuthFailure", "AWS was not able to validate the provided credentials"))
        account = fake_ec2_moto.account_of(scope["key"])
        if scope["service"] == fake_aws_services.QUOTAS:
            call = fake_aws_services.call_of(body, account, scope["region"])
        elif scope["service"] == fake_ebs_blocks.SERVICE:
            call = fake_ebs_blocks.call_of(body.decode(), account, scope["region"])
        else:
            params = dict(parse_qsl(body.decode(), keep_blank_values=True))
            call = Call(params["Action"], params, account, scope["region"], scope["service"])
        try:
            return self._with_faults(call).numbered()
        except Refusal as refusal:
            return refused(call.service, refusal).numbered()
        except Dropped:
            raise
        except BaseException as trouble:
            self.internal_errors.append(trouble)
            return refused(call.service, Refusal("InternalError", f"The simulation failed: {trouble!r}")).numbered()

    def _with_faults(self, call: Call) -> Answer:
        with lock:
            self.calls[call.action] += 1
            self.seen.append(call)
            met = self._faults.of(call)
        self._faults.happen(met, after_effect=False)
        done = self.do(call)
        self._faults.happen(met, after_effect=True)
        return done

    def do(self, call: Call) -> Answer:
        try:
            with lock:
                if self._ended:
                    raise Dropped
                self.clock.settle()
                done = self._by_rule(call)
                made, fake_ec2_moto.born[:] = list(fake_ec2_moto.born), []
                for each in made:
                    _begin(self, call, each)
        finally:
            with lock:
                hooks, self._afterwards = self._afterwards, []
            for hook in hooks:
                hook()
        return done

    def _by_rule(self, call: Call) -> Answer:
        if call.service == "sts":
            return fake_aws_services.answer_sts(self, call)
        if call.service == fake_aws_services.QUOTAS:
            return fake_aws_services.answer_quotas(self, call)
        rule = RULES.get(call.action)
        return rule(self, call) if rule else fake_ec2_moto.ask(call)


def _begin(cloud: Service, call: Call, made: Any) -> None:
    """Schedule the next states of a new resource: it appears, and later it can be used."""
    if call.action == "RunInstances":
        made.phase, made.root = "", True
        for attachment in made.attachments:
            attachment.instance.block_device_mapping[attachment.device].status = "attached"
    elif isinstance(made, fake_ec2_moto.Volume):
        _volume(cloud, made, fake_ec2_moto.store(call))
    else:
        _snapshot(cloud, made)


def _volume(cloud: Service, volume: fake_ec2_moto.Volume, place: Any) -> None:
    fate = cloud.planned_failures.popleft() if cloud.planned_failures else ""

    def grown() -> None:
        if fate == "vanish":
            place.volumes.pop(volume.id, None)
        else:
            volume.phase = fate

    cloud.describes.hide(volume.id, VOLUMES, cloud.takes.appearing)
    cloud.clock.after(cloud.takes.creating, VOLUMES.action, grown)
    cloud.call_hook(cloud.on_created, volume.id, volume.snapshot_id or volume.source_volume_id or "")


def _snapshot(cloud: Service, snapshot: fake_ec2_moto.Snapshot) -> None:
    def grown() -> None:
        snapshot.status = "completed"

    cloud.describes.hide(snapshot.id, SNAPSHOTS, cloud.takes.appearing)
    cloud.clock.after(cloud.takes.snapshot, SNAPSHOTS.action, grown)
    cloud.call_hook(cloud.on_snapshot, snapshot.id, snapshot.volume.id)
