"""How a call is answered: faults first, then EC2's rules and moto, then hooks, then faults that hide what was done."""

from __future__ import annotations

import functools
import re
import threading
from collections import Counter, deque
from collections.abc import Callable
from urllib.parse import parse_qsl

from . import rig_accounts, rig_attachments, rig_changes, rig_growth, rig_moto, rig_quotas, rig_snapshots, rig_volumes
from .rig_calls import Answer, Call, Dropped, Refusal, refused
from .rig_clock import Clock, Takes
from .rig_describes import SNAPSHOTS, VOLUMES, Describes
from .rig_faults import Faults
from .rig_http import Door
from .rig_tokens import Tokens
from .rig_volumes import Limits

REGION = "eu-west-1"
CREDENTIAL = re.compile(r"Credential=(?P<key>[^/]+)/[^/]+/(?P<region>[^/]+)/(?P<service>[^/]+)/")

Rule = Callable[["Service", Call], Answer]
RULES: dict[str, Rule] = {
    "CreateVolume": rig_volumes.create,
    "CopyVolumes": rig_volumes.copy,
    "DeleteVolume": rig_volumes.delete,
    "DescribeVolumes": lambda cloud, call: cloud.describes.describe(call, VOLUMES),
    "ModifyVolume": rig_changes.modify,
    "DescribeVolumesModifications": rig_changes.describe,
    "AttachVolume": rig_attachments.attach,
    "DetachVolume": rig_attachments.detach,
    "CreateTags": rig_volumes.tag,
    "TerminateInstances": rig_attachments.terminate,
    "CreateSnapshot": rig_snapshots.create,
    "DeleteSnapshot": rig_snapshots.delete,
    "DescribeSnapshots": lambda cloud, call: cloud.describes.describe(call, SNAPSHOTS),
    "EnableFastSnapshotRestores": rig_snapshots.enable_fast_restores,
}
lock = threading.RLock()  # moto's state is one for the whole process


class Service:
    """EC2 and the services beside it, from nothing to `end`. What has no underscore is for tests to set, or to read."""

    def __init__(self, door: Door) -> None:
        self.endpoint = f"http://127.0.0.1:{door.server_port}"
        self.region = REGION
        self.takes = Takes()
        self.limits = Limits()
        self.busy: set[str] = set()  # volumes whose guest does not let go: detached by force only
        self.trust: dict[str, str] = {}  # role -> the external id it asks for
        self.quotas = dict(rig_quotas.USUAL)  # by code
        self.quotas_per_page = rig_quotas.LARGEST_PAGE
        self.fast_restores: dict[str, set[str]] = {}  # snapshot -> zones
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
        self.trouble: list[BaseException] = []  # the rig's own, or a hook's: always a bug in the tests
        # Parts, for the rules.
        self.clock = Clock()
        self.describes: Describes = Describes(self.clock)
        self.tokens = Tokens()
        self._faults = Faults()
        self.dooms: deque[str] = deque()
        self._afterwards: list[Callable[[], object]] = []
        self._ended = False
        with lock:
            rig_moto.forget()
        door.serve = self._serve

    def end(self) -> None:
        """Let calls that still wait be dropped, and forget everything."""
        self._ended = True
        self._faults.end()
        with lock:
            rig_moto.forget()

    def tell(self, hook: Callable[..., object] | None, *words: object) -> None:
        """Call a test's hook once the lock is free, and before the answer goes out."""
        if hook:
            self._afterwards.append(functools.partial(hook, *words))

    def _serve(self, body: bytes, authorization: str) -> Answer:
        scope = CREDENTIAL.search(authorization)
        if not scope:
            return refused("ec2", Refusal("AuthFailure", "AWS was not able to validate the provided credentials"))
        account = rig_moto.account_of(scope["key"])
        if scope["service"] == rig_quotas.NAME:
            call = rig_quotas.call_of(body, account, scope["region"])
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
            self.trouble.append(trouble)
            return refused(call.service, Refusal("InternalError", f"The rig is broken: {trouble!r}")).numbered()

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
                made, rig_moto.born[:] = list(rig_moto.born), []
                for each in made:
                    rig_growth.begin(self, call, each)
        finally:
            with lock:
                hooks, self._afterwards = self._afterwards, []
            for hook in hooks:
                hook()
        return done

    def _by_rule(self, call: Call) -> Answer:
        if call.service == "sts":
            return rig_accounts.answer(self, call)
        if call.service == rig_quotas.NAME:
            return rig_quotas.answer(self, call)
        rule = RULES.get(call.action)
        return rule(self, call) if rule else rig_moto.ask(call)
