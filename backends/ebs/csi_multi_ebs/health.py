"""Health: what EC2's checks say of volumes, and of the instances that they are attached to.

EC2 checks each volume for disabled I/O and slow I/O (DescribeVolumeStatus), and each running instance for volumes that
it cannot reach (DescribeInstanceStatus). It does not say which of the instance's volumes those are. A volume that EC2
has given up shows in its state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from csi_multi.contract import Health, HealthEntry, Page, PageRequest, VolumeHealth, paged

from . import labels
from .batching import Batcher
from .ec2_cache import MAX_VOLUME_IDS, Ec2Cache
from .feature_calls import UNHEALTHY
from .resources import Ec2Volume, Ec2VolumeStatus

LISTING_TTL = 60.0  # seconds for which a listing serves its later pages

IO_ENABLED, IO_PERFORMANCE = "io-enabled", "io-performance"  # EC2's checks
# How EC2 calls slow I/O, and what it means for a volume.
SLOW = {
    "degraded": (Health.DEGRADED, "PerformanceDegraded"),
    "severely-degraded": (Health.DEGRADED, "PerformanceSeverelyDegraded"),
    "stalled": (Health.INACCESSIBLE, "IOStalled"),
}


class HealthReporter:
    """Reports problems of volumes. Lookups of one moment share a call. Thread-safe."""

    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache
        self._statuses: Batcher[Ec2VolumeStatus] = Batcher(cache.client.volume_statuses, most=MAX_VOLUME_IDS)
        self._lock = threading.Lock()
        self._instances: Batcher[set[str]] = Batcher(self._fetch_instances, most=2)  # one key: callers share a call
        self._listed: tuple[float, dict[str, VolumeHealth]] = (0.0, {})  # when it expires, time.monotonic()

    def volume(self, handle: str) -> tuple[HealthEntry, ...]:
        """Return what is wrong with a volume. Raises NotFound."""
        volume, deadline = self._cache.volume(handle), self._cache.wait_deadline(None)
        status = self._statuses.get(handle, deadline)
        attached = {one.instance for one in volume.attachments}
        cut_off = attached and attached & (self._instances.get("", deadline) or set())
        return _entries(volume, status, cut_off or ())

    def list_page(self, page: PageRequest) -> Page[VolumeHealth]:
        """Return one page of the volumes that have a problem. Raises InvalidToken."""
        with self._lock:
            expires, found = self._listed
        if not page.cursor or time.monotonic() >= expires:
            found = self._unhealthy()
            with self._lock:
                self._listed = (time.monotonic() + LISTING_TTL, found)
        return paged(sorted(found), page, found.get)

    def _unhealthy(self) -> dict[str, VolumeHealth]:
        """Return the problems of this instance's volumes by id, in as many calls as EC2 has pages."""
        client, owner = self._cache.client, self._cache.owner
        statuses, cut_off = client.unhealthy_volumes(), client.cut_off_instances()
        volumes = client.volumes(statuses)
        volumes |= {one.id: one for one in client.volumes_attached_to(cut_off, owner)}
        volumes |= {one.id: one for one in client.failed_volumes(owner)}
        found = {}
        for id, volume in volumes.items():
            here = {one.instance for one in volume.attachments} & cut_off
            entries = _entries(volume, statuses.get(id), here)
            if entries and volume.tags.get(labels.OWNER) == owner and labels.read_stamp(volume.tags):
                found[id] = VolumeHealth(handle=id, entries=entries)
        return found

    def _fetch_instances(self, _: Collection[str]) -> dict[str, set[str]]:
        return {"": self._cache.client.cut_off_instances()}


def _entries(volume: Ec2Volume, status: Ec2VolumeStatus | None, cut_off: Collection[str]) -> tuple[HealthEntry, ...]:
    """Return what is wrong with a volume, of which EC2's checks say this, on instances that do not reach theirs."""
    found = []
    if volume.state == "error":
        text = f"EC2 shows volume {volume.id} as failed (state error): restore it from a snapshot"
        found.append(HealthEntry(status=Health.DATA_LOSS, reason="VolumeFailed", message=text))
    if status:
        found += _checked(status)
    for instance in sorted(cut_off)[:1]:
        text = (
            f"EC2 reports that instance {instance} cannot reach at least one of its volumes: move the pods, or stop it"
        )
        found.append(HealthEntry(status=Health.INACCESSIBLE, reason="InstanceCutOff", message=text))
    return tuple(found)


def _checked(status: Ec2VolumeStatus) -> list[HealthEntry]:
    """Return what EC2's checks of a volume found; what they do not know yet is no problem."""
    if status.status not in UNHEALTHY:
        return []
    events = f" ({'; '.join(status.events)})" if status.events else ""
    found = []
    if status.checks.get(IO_ENABLED) == "failed":
        text = (
            f"EC2 has disabled the I/O of volume {status.volume}, whose data may be inconsistent{events}: check the "
            f"data, and enable it with 'aws ec2 enable-volume-io --volume-id {status.volume}'"
        )
        found.append(HealthEntry(status=Health.INACCESSIBLE, reason="IODisabled", message=text))
    if meaning := SLOW.get(status.checks.get(IO_PERFORMANCE, "")):
        text = f"EC2 reports that the performance of volume {status.volume} is below its IOPS{events}"
        found.append(HealthEntry(status=meaning[0], reason=meaning[1], message=text))
    if status.status == "impaired" and not found:
        text = f"EC2 reports volume {status.volume} as impaired{events}"
        found.append(HealthEntry(status=Health.DEGRADED, reason="VolumeImpaired", message=text))
    return found
