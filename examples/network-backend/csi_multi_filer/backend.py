"""Volumes in a directory that all nodes share: reserved files, each a loop device on the node that uses it.

The contract class only delegates; read volumes.py and devices.py for what is done.
"""

from __future__ import annotations

from typing import Any

from csi_multi.contract import (
    NO_SECRETS,
    Capacity,
    CapacityReport,
    CapacityRequest,
    Clone,
    Device,
    Expand,
    ExpandRequest,
    Expansion,
    ListVolumes,
    OpenRequest,
    Page,
    PageRequest,
    Setting,
    Strings,
    Volume,
    VolumeRequest,
)
from csi_multi.host.loopfile import LoopDevices

from .capacity import CapacityAccounting
from .client import Client
from .config import Config
from .devices import DeviceManager
from .labels import Labels
from .listing import Listing
from .volumes import VolumeManager


class FilerBackend(Expand, Clone, ListVolumes, Capacity):
    contract = (1, 1)
    Config = Config
    opens_exclusively = True  # the holder in the directory keeps other nodes away

    def __init__(self, config: Any, setting: Setting) -> None:
        super().__init__(config, setting)
        self._client = client = Client(config.directory)
        labels = Labels(client=client, driver=setting.driver, cluster=setting.cluster)
        loop_files = LoopDevices(setting.host)
        self._devices = DeviceManager(
            client=client, labels=labels, loop_files=loop_files, setting=setting, take_over=config.take_over
        )
        self._volumes = VolumeManager(client=client, labels=labels, devices=self._devices)
        self._listing = Listing(client=client, volume_manager=self._volumes)
        self._capacity = CapacityAccounting(client)
        self._resume_again = False

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.create(request)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.clone(request)

    def find_volume(self, name: str) -> Volume:
        return self._volumes.find(name)

    def get_volume(self, handle: str) -> Volume:
        return self._volumes.get(handle)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self._volumes.delete(handle)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        return self._volumes.expand(request)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self._listing.volumes(page)

    # Devices

    def open_device(self, request: OpenRequest) -> Device:
        return self._devices.open(request)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        return self._devices.find(handle)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.close(handle)

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.refresh(handle)

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._volumes.formatting(handle)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._volumes.formatted(handle)

    # The instance

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return self._capacity.report()

    def check(self) -> None:
        with self._client.connected("checking the directory"):
            pass
        if self._resume_again:
            self.resume()

    def resume(self) -> None:
        self._resume_again = True  # by check: the share may be mounted later than the driver starts
        if self.setting.serves_node:  # a controller has the name of its node, and does not see its devices
            self._devices.release_closed()
        if self.setting.controller:  # one process for the whole directory, not one on every node
            self._volumes.remove_leftovers()
        self._resume_again = False
