"""A backend over a directory in memory, created again as by each new driver process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from csi_multi.contract import Setting, SizeRange, Source, SourceKind, Stamp, VolumeRequest
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost

from csi_multi_ramdisk.backend import RamdiskBackend
from csi_multi_ramdisk.config import Config

MIB = 2**20
Connect = Callable[..., RamdiskBackend]
RequestFactory = Callable[..., VolumeRequest]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in the memory every Linux has. What a failed test leaves mounted and attached is removed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="csi-multi-ramdisk-") as directory:
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
def own_memory(memory: Path) -> Iterator[Path]:
    """A directory on a tmpfs of 64 MiB that nothing else uses (root)."""
    mounted = memory / "mounted"
    mounted.mkdir()
    LocalHost().run("mount", "-t", "tmpfs", "-o", "size=64M,mode=0700", "tmpfs", str(mounted))
    try:
        (mounted / "volumes").mkdir()
        yield mounted / "volumes"
    finally:
        end_devices(mounted)
        LocalHost().run("umount", str(mounted))


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB (root)."""
    LocalHost().run("mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", str(tmp_path))
    yield tmp_path
    LocalHost().run("umount", str(tmp_path))


@pytest.fixture
def connect() -> Connect:
    def backend(directory: Path, **more: str) -> RamdiskBackend:
        names = {"instance": "ram", "driver": "ram.example.com", "cluster": "c", "node": "node-1", **more}
        return RamdiskBackend(Config(directory=str(directory)), Setting(host=LocalHost(), **names))

    return backend


@pytest.fixture
def backend(memory: Path, connect: Connect) -> RamdiskBackend:
    return connect(memory)


@pytest.fixture
def volume_request() -> RequestFactory:
    def request(name: str, size: int = MIB, *, limit: int = 0, of: str = "") -> VolumeRequest:
        source = Source(kind=SourceKind.VOLUME, handle=of) if of else None
        stamp = Stamp(driver="ram.example.com", cluster="c", name=name, digest="d", source=source, context={"k": "v"})
        return VolumeRequest(stamp=stamp, size=SizeRange(required=size, limit=limit))

    return request
