"""The parts of an instance that its operations share: lvm's commands, reports, capacity, and the owned volumes."""

from __future__ import annotations

from dataclasses import dataclass

from csi_multi.contract import Setting

from . import labels
from .activation import Activation
from .capacity import CapacityAccounting
from .client import Client
from .config import Config
from .group_members import OwnedSnapshots
from .labels import Handles
from .listing import OwnedVolumes
from .report_cache import ReportCache


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceParts:
    """The parts of a configured instance."""

    config: Config
    client: Client
    reports: ReportCache
    capacity: CapacityAccounting
    activation: Activation
    volumes: OwnedVolumes
    snapshots: OwnedSnapshots


def instance_of(config: Config, setting: Setting) -> InstanceParts:
    """Return an instance's parts. No command runs."""
    client = Client(setting.host, config)
    reports = ReportCache(client)
    handles = Handles(setting.node, config.volume_group)
    return InstanceParts(
        config=config,
        client=client,
        reports=reports,
        capacity=CapacityAccounting(config, reports),
        activation=Activation(setting.host, client, config.volume_group),
        volumes=OwnedVolumes("volume", labels.VOLUME_PREFIX, handles, setting, client),
        snapshots=OwnedSnapshots("snapshot", labels.SNAPSHOT_PREFIX, handles, setting, client),
    )


class Operation:
    """The base of the classes that change volumes and snapshots."""

    def __init__(self, instance: InstanceParts) -> None:
        self._config = instance.config
        self._client = instance.client
        self._reports = instance.reports
        self._capacity = instance.capacity
        self._activation = instance.activation
        self._owned_volumes = instance.volumes
        self._owned_snapshots = instance.snapshots
