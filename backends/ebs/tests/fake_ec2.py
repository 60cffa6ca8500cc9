"""A simulated EC2 for tests: moto behind a proxy that adds what moto lacks, and injects faults.

    def test_a_volume_appears_late(cloud: FakeEc2) -> None:
        ec2 = cloud.client()  # boto3; a backend: Config(region=cloud.region, endpoint=cloud.endpoint)
        cloud.takes.creating = looks(2)  # two describes see `creating`; or seconds(3), FOREVER
        cloud.takes.appearing = looks(1)  # one describe does not see it at all
        cloud.fail("CreateVolume", "RequestLimitExceeded", times=2)
        cloud.fail("AttachVolume", "InternalError", after_effect=True)  # done, and answered with an error
        cloud.drop("*", skip=3, after_effect=True)  # the fourth call is done, and its connection breaks
        cloud.slow("DescribeVolumes", 2.0)
        cloud.limits.volumes = 10  # attachments, modifications, full_zones, ...
        cloud.fail_next_volume("error")  # its state becomes `error`; "vanish": it disappears
        node, other = cloud.instances(2, zone="eu-west-1a")
        ...
        cloud.advance(3600)  # an hour passes
        assert cloud.calls["CreateVolume"] == 3  # all that arrived, also those that failed
        assert cloud.seen[-1].get("VolumeType") == "gp3"
        assert cloud.everything() == ()  # nothing is left

By default everything is done at once: an answer says `creating` (pending, attaching,
detaching, modifying), and the next describe shows that it is done. Tests share only the process.
"""

from __future__ import annotations

import contextlib
import re
import string
from collections.abc import Callable, Collection, Iterator
from typing import Any

from . import fake_aws_services, fake_ec2_moto
from .fake_aws_services import OTHER_ROLE, OWN_ACCOUNT
from .fake_ec2_calls import Call, Dropped, Refusal
from .fake_ec2_clock import FOREVER, NOW, Wait, looks, seconds
from .fake_ec2_faults import Fault
from .fake_ec2_moto import lock
from .fake_ec2_server import Ec2Server
from .fake_ec2_service import REGION, Service

__all__ = [
    "FOREVER",
    "NOW",
    "OTHER_ROLE",
    "REGION",
    "Call",
    "FakeEc2",
    "Refusal",
    "Wait",
    "looks",
    "running",
    "seconds",
]


@contextlib.contextmanager
def running() -> Iterator[FakeEc2]:
    """A simulated EC2 for a program that is no test, one at a time: tests have the fixture `cloud`."""
    ec2_server = Ec2Server()
    try:
        yield FakeEc2(ec2_server)
    finally:
        ec2_server.close()


class FakeEc2(Service):
    """The test's view: faults, instances and resources. See also `takes` and `limits`."""

    # Faults.

    def fail(
        self,
        action: str,
        code: str,
        *,
        message: str = "",
        status: int = 0,
        times: float = 1,
        skip: int = 0,
        after_effect: bool = False,
        when: Callable[[Call], bool] = lambda _call: True,
    ) -> Fault:
        """Answer calls with this error, EC2's own status unless given. "*": any action; math.inf: for ever."""
        error = Refusal(code, message, status)
        return self._faults.add(Fault(action, times, skip, after_effect, when, error))

    def drop(
        self,
        action: str,
        *,
        times: float = 1,
        skip: int = 0,
        after_effect: bool = False,
        when: Callable[[Call], bool] = lambda _call: True,
    ) -> Fault:
        """Break the connection instead of answering."""
        return self._faults.add(Fault(action, times, skip, after_effect, when, Dropped()))

    def slow(
        self, action: str, seconds: float, *, times: float = 1, skip: int = 0, after_effect: bool = False
    ) -> Fault:
        """Delay calls, before or after their effect. Set times=0 on the returned fault to end it."""
        return self._faults.add(Fault(action, times, skip, after_effect, lambda _call: True, seconds=seconds))

    def fail_next_volume(self, how: str = "error") -> None:
        """Let the next volume fail once it is created: its state becomes `error`, or it will "vanish"."""
        self.planned_failures.append(how)

    def remove_created_with(self, token: str) -> None:
        """Remove the volume that was created with this token; the token still returns it."""
        id = self.tokens.volume(token)
        for store in fake_ec2_moto.stores():
            store.volumes.pop(id, None)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # Instances.

    def instances(
        self, number: int = 1, *, type: str = "m5.large", zone: str = f"{REGION}a", account: str = OWN_ACCOUNT
    ) -> list[str]:
        """Start instances, and return their ids. Each has a volume of its own, /dev/sda1, that does not count."""
        params = {"ImageId": "ami-12345678", "InstanceType": type, "Placement.AvailabilityZone": zone}
        counts = {"MinCount": str(number), "MaxCount": str(number)}
        done = self.do(Call("RunInstances", {"Action": "RunInstances", **params, **counts}, account, zone[:-1]))
        return re.findall(r"<instanceId>(i-\w+)<", done.body.decode())

    def put_on_outpost(self, instance: str, arn: str) -> None:
        """Let an instance be on an Outpost."""
        for store in fake_ec2_moto.stores():
            for each in store.all_instances():
                if each.id == instance:
                    each.outpost_arn = arn  # moto shows what it finds

    def terminate(self, instance: str, *, account: str = OWN_ACCOUNT, forget: bool = False) -> None:
        """End an instance. EC2 shows it for an hour, then it does not exist (forget)."""
        params = {"Action": "TerminateInstances", "InstanceId.1": instance}
        self.do(Call("TerminateInstances", params, account, self.region))
        if forget:
            for store in fake_ec2_moto.stores():
                for reservation in store.reservations.values():
                    reservation.instances = [each for each in reservation.instances if each.id != instance]

    def stop(self, instance: str, *, account: str = OWN_ACCOUNT) -> None:
        self.do(Call("StopInstances", {"Action": "StopInstances", "InstanceId.1": instance}, account, self.region))

    def attach_missing(self, volumes: Collection[str], instance: str) -> list[str]:
        """Attach the volumes that exist and are attached nowhere, where the first one is that is attached, else to this
        instance. Returns them. This is no call that a fault could meet."""
        there = {id: store.volumes[id] for store in fake_ec2_moto.stores() for id in volumes if id in store.volumes}
        where = next((place for id in volumes if id in there for place in there[id].held), instance)
        missing = [id for id, volume in there.items() if not volume.held]
        used = {
            each.device
            for store in fake_ec2_moto.stores()
            for one in store.volumes.values()
            for each in one.attachments
        }
        names = [name for letter in string.ascii_lowercase if (name := f"/dev/xvdz{letter}") not in used]
        for id, device in zip(missing, names, strict=False):
            params = {"Action": "AttachVolume", "VolumeId": id, "InstanceId": where, "Device": device}
            self.do(Call("AttachVolume", params, OWN_ACCOUNT, self.region))
        with lock:
            self.clock.settle()
        return missing

    def detach_all(self, volumes: Collection[str]) -> None:
        """Detach volumes again, in the same way."""
        for id in volumes:
            params = {"Action": "DetachVolume", "VolumeId": id}
            self.do(Call("DetachVolume", params, OWN_ACCOUNT, self.region))

    # Resources.

    def everything(self) -> tuple[str, ...]:
        """Return every volume, snapshot and attachment of all accounts, without what instances have of their own."""
        found = []
        with lock:
            self.clock.settle()
            for store in fake_ec2_moto.stores():
                volumes = [volume for volume in store.volumes.values() if not volume.root]
                found += [volume.id for volume in volumes]
                found += [f"{volume.id} on {instance}" for volume in volumes for instance in volume.held]
                found += store.snapshots
        return tuple(sorted(found))

    def account_of(self, id: str) -> str:
        """Return the account that a volume or snapshot is in. Raises LookupError."""
        for store in fake_ec2_moto.stores():
            if id in store.volumes or id in store.snapshots:
                return str(store.account_id)
        raise LookupError(id)

    def client(self, service: str = "ec2", *, region: str = REGION) -> Any:
        """Return a boto3 client that retries nothing."""
        return fake_aws_services.client(service, self.endpoint, region)
