"""Volumes of LVM on a node, through the driver's socket, as kubelet uses them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from csi_multi_testing import messages

from csi_multi._proto import csi_pb2 as pb
from csi_multi.commands import cli
from csi_multi.contract import AccessMode, Capability, Mount, SizeRange
from csi_multi.host import loopdev, mounts
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

from .group import EXTENT, MIB, Group, Lvm, volume_group
from .matrix import once

pytestmark = pytest.mark.devicemapper

CONFIG = """\
driver: {{name: node.csi-multi.example, node: n1, default_backend: disks}}
backends:
  disks: {{kind: lvm, volume_group: {group}, thin_pool: {pool}, reserve_percent: 0, overprovision: 10}}
"""
SIZE = {"ext4": 32 * MIB, "xfs": 320 * MIB}
MORE = 16 * MIB
START = 120.0  # seconds for the driver: in a guest on a busy machine its imports alone take half a minute
ENCRYPTED = {
    "encryption": "luks2",
    "encryptionDiscard": "true",
    "encryptionPbkdf": "pbkdf2",
    "encryptionPbkdfTime": "100",  # the default takes seconds in a guest
}
PLACES = once(("ext4", "thin"), ("ext4", "raid1"), ("xfs", "thin"), ("xfs", "raid1"))


@pytest.fixture(scope="module")
def disks(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with volume_group(lvm, tmp_path_factory.mktemp("disks"), disks=2, size=1024 * MIB, pool=256 * MIB) as group:
        yield group


@pytest.fixture(scope="module")
def client(disks: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A driver in a process of its own."""
    driver = DriverProcess(tmp_path_factory.mktemp("driver"), CONFIG.format(group=disks.name, pool=disks.pool))
    driver.launch()
    client = Client(driver.endpoint)
    try:
        client.wait(START)
        yield client
    finally:
        client.close()
        status = driver.stop()
    assert status == 0


@dataclass
class Pod:
    """A volume, and the paths at which a pod uses it."""

    client: Client
    directory: Path
    capability: Capability
    secrets: dict[str, str] = field(default_factory=dict)
    id: str = ""
    context: dict[str, str] = field(default_factory=dict)
    published: list[Path] = field(default_factory=list)

    def make(self, size: int, **parameters: str) -> None:
        answer = self.client.CreateVolume(
            name=f"pvc-{self.directory.name}"[:40],
            capacity_range=messages.size_range(SizeRange(required=size)),
            volume_capabilities=[messages.capability(self.capability)],
            parameters=parameters,
        )
        self.id, self.context = answer.volume.volume_id, dict(answer.volume.volume_context)

    def about(self) -> dict[str, Any]:
        return {
            "volume_id": self.id,
            "staging_target_path": str(self.directory / "staging"),
            "volume_capability": messages.capability(self.capability),
            "volume_context": self.context,
            "secrets": self.secrets,
        }

    def start(self, name: str = "target", *, read_only: bool = False) -> Path:
        """Stage and publish."""
        (self.directory / "staging").mkdir(exist_ok=True)
        target = self.directory / name
        self.client.NodeStageVolume(**self.about())
        self.client.NodePublishVolume(**self.about(), target_path=str(target), readonly=read_only)
        self.published.append(target)
        return target

    def expand(self, size: int) -> int:
        """Grow the volume, then its filesystem."""
        wanted = messages.size_range(SizeRange(required=size))
        answer = self.client.ControllerExpandVolume(
            volume_id=self.id, capacity_range=wanted, volume_capability=messages.capability(self.capability)
        )
        assert answer.node_expansion_required
        self.client.NodeExpandVolume(volume_id=self.id, volume_path=str(self.published[0]), capacity_range=wanted)
        return int(answer.capacity_bytes)

    def stop(self) -> None:
        """Unpublish and unstage."""
        while self.published:
            self.client.NodeUnpublishVolume(volume_id=self.id, target_path=str(self.published.pop()))
        self.client.NodeUnstageVolume(volume_id=self.id, staging_target_path=str(self.directory / "staging"))

    def delete(self) -> None:
        self.client.DeleteVolume(volume_id=self.id)


@contextmanager
def pod(client: Client, directory: Path, fs: str | None) -> Iterator[Pod]:
    """Let a pod use a volume, which is deleted with the pod."""
    mount = None if fs is None else Mount(fs_type=fs)
    one = Pod(client, directory, Capability(mode=AccessMode.SINGLE_NODE_MULTI_WRITER, mount=mount))
    try:
        yield one
    finally:
        if one.id:
            one.stop()
            one.delete()


def active(group: Group) -> list[str]:
    """Return the devices of volumes."""
    return [name for name in group.devices() if "-csi--" in name.removeprefix("csi--test")]


def nothing_is_left(group: Group, directory: Path) -> None:
    """Demand that all is deactivated and unmounted."""
    assert active(group) == []
    assert [one.target for one in mounts.table() if one.target.startswith(str(directory))] == []


@pytest.mark.parametrize(("fs", "kind"), PLACES)
def test_a_filesystem_is_made_written_grown_in_use_and_found_again(
    client: Client, disks: Group, tmp_path: Path, fs: str, kind: str
) -> None:
    with pod(client, tmp_path, fs) as one:
        one.make(SIZE[fs], type=kind)
        target = one.start()
        (target / "kept").write_bytes(b"bytes" * 1000)
        before = os.statvfs(target)
        with (target / "open").open("wb") as busy:
            grown = one.expand(SIZE[fs] + MORE)
            busy.write(b"x" * 100_000)
        after = os.statvfs(target)
        assert grown == SIZE[fs] + MORE
        assert after.f_blocks * after.f_frsize > before.f_blocks * before.f_frsize + MORE // 2
        assert [entry.fs_type for entry in mounts.table() if entry.target == str(target)] == [fs]
        one.stop()
        nothing_is_left(disks, tmp_path)

        target = one.start()
        assert (target / "kept").read_bytes() == b"bytes" * 1000
        assert (target / "open").stat().st_size == 100_000
        one.stop()
        nothing_is_left(disks, tmp_path)


@pytest.mark.parametrize(("fs", "kind"), [("ext4", "linear"), ("xfs", "thin")])
def test_a_copy_of_a_volume_in_use_is_staged_read_only(
    client: Client, disks: Group, tmp_path: Path, fs: str, kind: str
) -> None:
    """Its journal must be replayed first, because the filesystem was mounted when the snapshot was created."""
    reader = messages.capability(Capability(mode=AccessMode.SINGLE_NODE_READER_ONLY, mount=Mount(fs_type=fs)))
    with pod(client, tmp_path, fs) as one:
        one.make(SIZE[fs], type=kind)
        with (one.start() / "kept").open("wb") as file:
            file.write(b"bytes" * 1000)
            os.fsync(file.fileno())
        snap = client.CreateSnapshot(name=f"snap-{fs}", source_volume_id=one.id).snapshot.snapshot_id
        source = {"snapshot": {"snapshot_id": snap}}
        copy = client.CreateVolume(
            name=f"copy-{fs}",
            volume_content_source=source,
            volume_capabilities=[reader],
            parameters={"type": kind},
        ).volume.volume_id
        staging = tmp_path / "staging-copy"
        staging.mkdir()
        client.NodeStageVolume(volume_id=copy, staging_target_path=str(staging), volume_capability=reader)

        assert (staging / "kept").read_bytes() == b"bytes" * 1000
        with pytest.raises(OSError, match="Read-only file system"):
            (staging / "other").touch()
        client.NodeUnstageVolume(volume_id=copy, staging_target_path=str(staging))
        client.DeleteVolume(volume_id=copy)
        client.DeleteSnapshot(snapshot_id=snap)
        one.stop()
    nothing_is_left(disks, tmp_path)


@pytest.mark.parametrize("kind", once("linear", "thin"))
def test_a_raw_block_volume_is_published_written_grown_in_use_and_found_again(
    client: Client, disks: Group, tmp_path: Path, kind: str
) -> None:
    with pod(client, tmp_path, None) as one:
        one.make(4 * EXTENT, type=kind)
        target = one.start()
        second = one.start("second", read_only=True)
        with target.open("r+b") as disk:
            disk.write(b"bytes")
            os.fsync(disk.fileno())
            assert one.expand(6 * EXTENT) == 6 * EXTENT
            assert disk.seek(0, os.SEEK_END) == 6 * EXTENT
        with second.open("rb") as disk:
            assert disk.read(8) == b"bytes\0\0\0"
        assert active(disks) != []
        with pytest.raises(grpc.RpcError) as raised:  # in use
            one.delete()
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        one.stop()
        nothing_is_left(disks, tmp_path)

        target = one.start()
        with target.open("rb") as disk:
            assert disk.read(8) == b"bytes\0\0\0"
        one.stop()
        nothing_is_left(disks, tmp_path)


def test_a_volume_staged_for_a_filesystem_is_not_unstaged_under_a_mount(
    client: Client, disks: Group, tmp_path: Path
) -> None:
    with pod(client, tmp_path, "ext4") as one:
        one.make(SIZE["ext4"], type="thin")
        target = one.start()
        with pytest.raises(grpc.RpcError) as raised:
            client.NodeUnstageVolume(volume_id=one.id, staging_target_path=str(tmp_path / "staging"))
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert active(disks) != []
        (target / "still").write_text("writable")
        one.stop()
        one.stop()
        nothing_is_left(disks, tmp_path)


def test_a_volume_reports_its_topology_and_its_usage(client: Client, disks: Group, tmp_path: Path) -> None:
    with pod(client, tmp_path, "ext4") as one:
        one.make(SIZE["ext4"], type="linear")
        (listed,) = client.ListVolumes().entries
        assert listed.volume.volume_id == one.id
        assert [dict(place.segments) for place in listed.volume.accessible_topology] == [
            dict(client.NodeGetInfo().accessible_topology.segments)
        ]
        target = one.start()
        usage = client.NodeGetVolumeStats(volume_id=one.id, volume_path=str(target)).usage
        totals = {one.unit: one.total for one in usage}
        assert totals[pb.VolumeUsage.BYTES] > SIZE["ext4"] // 2
        one.stop()


def stored(group: Group, data: bytes) -> bool:
    """Whether these bytes are anywhere on the disks of a group."""
    files = {str(device): Path(file) for device, file in loopdev.bound_devices().items()}
    return any(data in part for disk in group.disks for part in written(files[str(disk)]))


def written(file: Path) -> Iterator[bytes]:
    """Yield what is stored in a sparse file."""
    with file.open("rb") as disk, contextlib.suppress(OSError):  # ENXIO: nothing follows
        end = 0
        while True:
            start = os.lseek(disk.fileno(), end, os.SEEK_DATA)
            end = os.lseek(disk.fileno(), start, os.SEEK_HOLE)
            yield os.pread(disk.fileno(), end - start, start)


def test_an_encrypted_volume_is_noise_to_lvm_and_gives_back_what_it_does_not_use(
    client: Client, disks: Group, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = b"the plain text of a secret letter"
    with pod(client, tmp_path, "ext4") as one:
        one.secrets = {"passphrase": "correct horse battery staple"}
        one.make(SIZE["ext4"], type="thin", **ENCRYPTED)
        target = one.start()
        (target / "letter").write_bytes(mark * 1000)
        assert one.expand(SIZE["ext4"] + MORE) == SIZE["ext4"] + MORE
        one.stop()
        nothing_is_left(disks, tmp_path)
        assert stored(disks, b"csi-multi")  # the label of the header: the search finds what is there
        assert not stored(disks, mark)

        target = one.start()
        assert (target / "letter").read_bytes() == mark * 1000
        (target / "large").write_bytes(os.urandom(MORE))
        os.sync()
        (target / "large").unlink()
        os.sync()
        assert cli.main(["trim", one.id]) == 0
        assert int(capsys.readouterr().out.split()[2]) >= MORE
        one.stop()
        nothing_is_left(disks, tmp_path)
