"""The conformance kit of csi_multi on this backend: one fixture that describes the storage, and one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from csi_multi.contract import AlreadyExists, Backend, Host, SizeRange, Stamp, VolumeRequest
from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost
from csi_multi_testing import Storage, setting
from csi_multi_testing.storage import CLUSTER, NODE

from csi_multi_ramdisk.backend import RamdiskBackend
from csi_multi_ramdisk.config import Config

pytestmark = pytest.mark.root  # its devices are loop devices

MIB = 2**20
# Calls on files of the directory, for each method.
BUDGETS = {
    "create_volume": 8,
    "clone_volume": 12,
    "find_volume": 1,
    "get_volume": 1,
    "delete_volume": 7,
    "expand_volume": 4,
}


@pytest.fixture
def storage(own_memory: Path) -> Storage:
    memory = own_memory  # the checks of a full storage fill it

    def connect(host: Host) -> Backend:  # as a process that starts
        return RamdiskBackend(Config(directory=str(memory)), setting(host))

    def resources() -> list[str]:  # everything there is: what stays is a leak
        devices = [f"{device} of {file}" for device, file in loopdev.bound_devices().items() if str(memory) in file]
        return devices + [path.name for path in memory.iterdir()]

    def foreign() -> None:  # what others keep here must survive, and stay unlisted
        other = RamdiskBackend(
            Config(directory=str(memory)),
            replace(setting(LocalHost()), driver="other.example"),
        )
        stamp = Stamp(driver="other.example", cluster=CLUSTER, name="theirs", digest="")
        with suppress(AlreadyExists):
            other.create_volume(VolumeRequest(stamp=stamp, size=SizeRange(required=MIB)))
        (memory / "notes.txt").touch()

    @contextmanager
    def away() -> Iterator[None]:  # the directory is not there: nothing may be taken for deleted
        elsewhere = memory.rename(memory.with_name(f"{memory.name}.away"))
        try:
            yield
        finally:
            elsewhere.rename(memory)

    @contextmanager
    def covered() -> Iterator[None]:  # as without its tmpfs: the directory is empty, and not on one
        LocalHost().run("mount", "-t", "ramfs", "ramfs", str(memory))
        try:
            yield
        finally:
            LocalHost().run("umount", str(memory))

    return Storage(
        connect=connect,
        size=MIB,
        resources=resources,
        files=(memory,),  # every system call on files below is one where the kit lets it die or fail
        devices=True,
        budgets=BUDGETS,
        foreign=foreign,
        foreign_handles=(f"{NODE}/theirs",),
        away=away,
        also_away=(covered,),
    )


def test_contract(csi_contract: Callable[[], None]) -> None:
    csi_contract()
