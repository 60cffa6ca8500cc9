"""The conformance kit of csi_multi on this backend: one fixture that describes the storage, and one test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from csi_multi.contract import AlreadyExists, Backend, Host, SizeRange, Stamp, VolumeRequest
from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost
from csi_multi_testing import Call, Storage, setting
from csi_multi_testing.storage import CLUSTER

from csi_multi_filer.backend import FilerBackend
from csi_multi_filer.config import Config

pytestmark = pytest.mark.root  # its devices are loop devices

MIB = 2**20
# Calls on files of the directory, fsync included, for each method.
BUDGETS = {
    "create_volume": 18,
    "clone_volume": 24,
    "find_volume": 2,
    "get_volume": 2,
    "delete_volume": 16,
    "expand_volume": 6,
}


@pytest.fixture
def storage(own_share: Path) -> Storage:
    share = own_share  # the checks of a full storage fill it

    def connect(host: Host) -> Backend:  # as a process that starts
        return FilerBackend(Config(directory=str(share)), setting(host))

    def resources() -> list[str]:  # everything there is: what stays is a leak
        devices = [f"{device} of {file}" for device, file in loopdev.bound_devices().items() if str(share) in file]
        return devices + [path.name for path in share.iterdir()]

    def foreign() -> None:  # what others keep here must survive, and stay unlisted
        other = FilerBackend(
            Config(directory=str(share)),
            replace(setting(LocalHost()), driver="other.example"),
        )
        stamp = Stamp(driver="other.example", cluster=CLUSTER, name="theirs", digest="")
        with suppress(AlreadyExists):
            other.create_volume(VolumeRequest(stamp=stamp, size=SizeRange(required=MIB)))
        (share / "by-hand.filer").write_bytes(b"data")
        (share / "notes.txt").touch()

    @contextmanager
    def away() -> Iterator[None]:  # as where the share is not mounted: its mount point is an empty directory
        with missing():
            share.mkdir()
            try:
                yield
            finally:
                share.rmdir()

    @contextmanager
    def missing() -> Iterator[None]:
        elsewhere = share.rename(share.with_name(f"{share.name}-away"))
        try:
            yield
        finally:
            elsewhere.rename(share)

    return Storage(
        connect=connect,
        size=MIB,
        resources=resources,
        files=(share,),  # every system call on files below is one where the kit lets it die or fail
        calls=(Call(owner=os, name="fsync"),),  # these do not show themselves to the kit
        devices=True,
        budgets=BUDGETS,
        foreign=foreign,
        away=away,
        also_away=(missing,),
        foreign_handles=("theirs", "by-hand"),
    )


def test_contract(csi_contract: Callable[[], None]) -> None:
    csi_contract()
