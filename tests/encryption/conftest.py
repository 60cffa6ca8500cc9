"""A real driver over the loop backend whose volumes are encrypted, and what an orchestrator asks of it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from csi_multi._proto import csi_pb2 as pb
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

MIB = 1 << 20
HEADER = 16 * MIB
SIZE = 40 * MIB
SECRET = {"passphrase": "correct horse battery staple"}
QUICK = {"encryptionPbkdf": "pbkdf2", "encryptionPbkdfTime": "100"}  # the default takes seconds in a guest
CLASS = {"encryption": "luks2", **QUICK}
CONFIG = """\
driver: {{name: encryption.csi-multi.example, node: n1, default_backend: scratch, alpha: true, log_level: debug}}
backends:
  scratch: {{kind: loop, directory: {directory}/scratch, reserve_percent: 0}}
"""


def filesystem(fs_type: str = "", mode: str = "SINGLE_NODE_WRITER") -> pb.VolumeCapability:
    return pb.VolumeCapability(mount={"fs_type": fs_type}, access_mode={"mode": mode})


def block(mode: str = "SINGLE_NODE_WRITER") -> pb.VolumeCapability:
    return pb.VolumeCapability(block={}, access_mode={"mode": mode})


@dataclass
class Node:
    """The orchestrator's side of one driver: what it asks of the controller and of the node."""

    directory: Path
    driver: DriverProcess
    client: Client
    test: str = ""  # part of the names of what it makes
    secrets: dict[str, str] = field(default_factory=lambda: dict(SECRET))
    staged: list[tuple[str, Path]] = field(default_factory=list)
    published: list[tuple[str, Path]] = field(default_factory=list)

    def create(self, name: str, capability: pb.VolumeCapability | None = None, **more: Any) -> pb.Volume:
        wanted: dict[str, Any] = {
            "name": f"{self.test}-{name}",
            "capacity_range": {"required_bytes": SIZE},
            "volume_capabilities": [capability or filesystem()],
            "parameters": CLASS,
            **more,
        }
        return self.client.CreateVolume(**wanted).volume

    def stage(self, volume: pb.Volume, capability: pb.VolumeCapability | None = None, **more: Any) -> Path:
        staging = self.directory / "staging" / volume.volume_id.replace("/", "-")
        staging.mkdir(parents=True, exist_ok=True)
        wanted: dict[str, Any] = {
            "volume_id": volume.volume_id,
            "staging_target_path": str(staging),
            "volume_capability": capability or filesystem(),
            "volume_context": volume.volume_context,
            "secrets": self.secrets,
            **more,
        }
        self.client.NodeStageVolume(**wanted)
        self.staged.append((volume.volume_id, staging))
        return staging

    def publish(self, volume: pb.Volume, capability: pb.VolumeCapability | None = None, **more: Any) -> Path:
        """Stage and publish; return the target path."""
        staging = self.stage(volume, capability, **more)
        target = self.directory / "pods" / volume.volume_id.replace("/", "-")
        target.parent.mkdir(exist_ok=True)
        self.client.NodePublishVolume(
            volume_id=volume.volume_id,
            staging_target_path=str(staging),
            target_path=str(target),
            volume_capability=capability or filesystem(),
            volume_context=volume.volume_context,
        )
        self.published.append((volume.volume_id, target))
        return target

    def release(self, volume: pb.Volume) -> None:
        """Unpublish and unstage everywhere."""
        for volume_id, target in [one for one in self.published if one[0] == volume.volume_id]:
            self.client.NodeUnpublishVolume(volume_id=volume_id, target_path=str(target))
            self.published.remove((volume_id, target))
        for volume_id, staging in [one for one in self.staged if one[0] == volume.volume_id]:
            self.client.NodeUnstageVolume(volume_id=volume_id, staging_target_path=str(staging))
            self.staged.remove((volume_id, staging))

    def snapshot(self, volume: pb.Volume, name: str) -> pb.Snapshot:
        return self.client.CreateSnapshot(source_volume_id=volume.volume_id, name=f"{self.test}-{name}").snapshot

    def restart(self, *, kill: bool = False) -> None:
        self.client.close()
        if kill:
            self.driver.kill()
        else:
            self.driver.stop()
        self.client = self.driver.start()

    def stored(self, volume: pb.Volume) -> Path:
        """Return the file that holds the volume."""
        (image,) = (self.directory / "scratch" / "volumes").glob(f"*{volume.volume_id.rpartition('/')[2]}*/image")
        return image


def mappers() -> list[str]:
    return sorted(one.name for one in Path("/dev/mapper").glob("csi-multi-*"))


def sh(*argv: str, ok: tuple[int, ...] = (0,), **more: Any) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **more)
    assert done.returncode in ok, f"{argv} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A driver for all tests: to start one takes seconds in a guest."""
    directory = tmp_path_factory.mktemp("encryption")
    driver = DriverProcess(directory, CONFIG.format(directory=directory))
    node = Node(directory, driver, driver.start())
    yield node
    node.client.close()
    driver.stop()


@pytest.fixture
def node(started: Node, request: pytest.FixtureRequest) -> Iterator[Node]:
    started.test = re.sub("[^a-z0-9]", "-", request.node.name)[-40:]
    yield started
    for volume_id in {one for one, _ in [*started.published, *started.staged]}:
        started.release(pb.Volume(volume_id=volume_id))
    assert mappers() == []
