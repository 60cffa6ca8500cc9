"""A backend over a directory, created again as by each new driver process, on one node or another."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from csi_multi.contract import Setting, SizeRange, Source, SourceKind, Stamp, VolumeRequest
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost

from csi_multi_filer.backend import FilerBackend
from csi_multi_filer.client import MARK
from csi_multi_filer.config import Config

MIB = 2**20
Connect = Callable[..., FilerBackend]
RequestFactory = Callable[..., VolumeRequest]


@pytest.fixture
def share() -> Iterator[Path]:
    """A directory that stands for the share, in memory. What a failed test leaves mounted and attached is removed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="csi-multi-filer-") as directory:
        Path(directory, MARK).touch()
        yield Path(directory)
        end_devices(Path(directory))


def end_devices(directory: Path) -> None:
    """Unmount and detach the loop devices of the files below a directory."""
    for device, file in loopdev.bound_devices().items():
        if file.startswith(f"{directory}/"):
            for mount in [one for one in mounts.table() if one.source == str(device)]:
                LocalHost().run("umount", mount.target)
            LocalHost().run("losetup", "--detach", str(device), ok=(0, 1))  # 1: it went with the mount


@pytest.fixture
def own_share(share: Path) -> Iterator[Path]:
    """A share of 64 MiB that nothing else uses, with a mark (root)."""
    mounted = share / "mounted"
    mounted.mkdir()
    LocalHost().run("mount", "-t", "tmpfs", "-o", "size=64M", "tmpfs", str(mounted))
    try:
        (mounted / "volumes").mkdir()
        (mounted / "volumes" / MARK).touch()
        yield mounted / "volumes"
    finally:
        end_devices(mounted)
        LocalHost().run("umount", str(mounted))


@pytest.fixture
def small_share(tmp_path: Path) -> Iterator[Path]:
    """A share of 8 MiB (root)."""
    LocalHost().run("mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", str(tmp_path))
    (tmp_path / MARK).touch()
    yield tmp_path
    LocalHost().run("umount", str(tmp_path))


@pytest.fixture
def connect() -> Connect:
    def backend(directory: Path, take_over: bool = False, **more: Any) -> FilerBackend:
        names = {"instance": "nfs", "driver": "nfs.example.com", "cluster": "c", "node": "node-1"}
        setting = Setting(**{"host": LocalHost(), **names, **more})
        return FilerBackend(Config(directory=str(directory), take_over=take_over), setting)

    return backend


@pytest.fixture
def backend(share: Path, connect: Connect) -> FilerBackend:
    return connect(share)


@pytest.fixture
def volume_request() -> RequestFactory:
    def request(name: str, size: int = MIB, *, limit: int = 0, of: str = "") -> VolumeRequest:
        source = Source(kind=SourceKind.VOLUME, handle=of) if of else None
        stamp = Stamp(driver="nfs.example.com", cluster="c", name=name, digest="d", source=source, context={"k": "v"})
        return VolumeRequest(stamp=stamp, size=SizeRange(required=size, limit=limit))

    return request
