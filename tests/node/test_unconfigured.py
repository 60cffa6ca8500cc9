"""A backend instance is taken out of the configuration while its volumes are mounted: unmounting needs no backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost
from csi_multi.node import device_records
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

pytestmark = pytest.mark.root

DRIVER = "driver: {name: removed.csi-multi.example, node: n1}\n"
BOTH = "backends: {{gone: {{kind: loop, directory: {0}/gone}}, kept: {{kind: loop, directory: {0}/kept}}}}\n"
ONE = "backends: {{kept: {{kind: loop, directory: {0}/kept}}}}\n"
WRITER = {"access_mode": {"mode": "SINGLE_NODE_WRITER"}}
MOUNT, BLOCK = {"mount": {"fs_type": "ext4"}, **WRITER}, {"block": {}, **WRITER}
kinds = pytest.mark.parametrize("capability", [MOUNT, BLOCK], ids=["mount", "block"])


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Callable[[str], Client]]:
    """Start the driver anew with this configuration."""
    running: list[tuple[DriverProcess, Client]] = []

    def stop() -> None:
        for driver, client in running:
            client.close()
            driver.stop()
        running.clear()

    def start(backends: str) -> Client:
        stop()
        driver = DriverProcess(tmp_path, DRIVER + backends.format(tmp_path))
        running.append((driver, driver.start()))
        return running[0][1]

    for name in ("gone", "kept"):
        (tmp_path / name).mkdir()
    yield start
    stop()
    remaining = [one.target for one in mounts.table() if one.target.startswith(f"{tmp_path}/")]
    loops = [str(one) for one, file in loopdev.bound_devices().items() if file.startswith(f"{tmp_path}/")]
    for target in reversed(remaining):
        LocalHost().run("umount", target, ok=(0, 1, 32))
    for loop in loops:
        LocalHost().run("losetup", "--detach", loop, ok=(0, 1))
    assert (remaining, loops) == ([], [])


class Paths:
    def __init__(self, directory: Path) -> None:
        self.staging, self.target = directory / "staging", directory / "target"
        self.staging.mkdir()


def use(client: Client, paths: Paths, capability: Any, backend: str = "gone") -> str:
    """Create, stage and publish a volume."""
    volume = client.CreateVolume(
        name="v",
        parameters={"backend": backend},
        volume_capabilities=[capability],
        capacity_range={"required_bytes": 32 << 20},
    ).volume.volume_id
    at = {"volume_id": volume, "staging_target_path": str(paths.staging), "volume_capability": capability}
    client.NodeStageVolume(**at)
    client.NodePublishVolume(**at, target_path=str(paths.target), readonly=capability is BLOCK)
    return str(volume)


@kinds
def test_a_volume_of_an_instance_that_was_removed_is_unmounted(
    configured: Any, tmp_path: Path, refused: Any, capability: Any
) -> None:
    paths = Paths(tmp_path)
    volume = use(configured(BOTH), paths, capability)

    client = configured(ONE)
    for _ in range(2):
        client.NodeUnpublishVolume(volume_id=volume, target_path=str(paths.target))
    assert not paths.target.exists()
    for _ in range(2):
        refusal = refused(client.NodeUnstageVolume, volume_id=volume, staging_target_path=str(paths.staging))
        assert refusal.code is grpc.StatusCode.UNAVAILABLE, refusal.text
        assert "its device stays open" in refusal.text
        assert "put backend 'gone' back into the configuration" in refusal.text
    assert not [one for one in mounts.table() if one.target.startswith(str(paths.staging))]

    client = configured(BOTH)
    client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(paths.staging))
    client.DeleteVolume(volume_id=volume)


@kinds
def test_without_a_record_nothing_is_unmounted_and_the_remedy_is_named(
    configured: Any, tmp_path: Path, refused: Any, capability: Any
) -> None:
    paths = Paths(tmp_path)
    volume = use(configured(BOTH), paths, capability)
    for number in device_records.DeviceNotes(device_records.NOTES).names():
        record = device_records.of_device(number)
        if record and str(paths.staging) in record.staging | {
            str(Path(one).parent / "staging") for one in record.groups
        }:
            device_records.remove(record.key, number)

    client = configured(ONE)
    undo = [
        (client.NodeUnpublishVolume, {"target_path": str(paths.target)}),
        (client.NodeUnstageVolume, {"staging_target_path": str(paths.staging)}),
    ]
    for method, path in undo:
        refusal = refused(method, volume_id=volume, **path)
        assert refusal.code is grpc.StatusCode.UNAVAILABLE, refusal.text
        assert "put backend 'gone' back into the configuration" in refusal.text
    assert len([one for one in mounts.table() if one.target.startswith(f"{tmp_path}/")]) == 2

    client = configured(BOTH)
    client.NodeUnpublishVolume(volume_id=volume, target_path=str(paths.target))
    client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(paths.staging))


def test_another_instances_volume_is_not_unmounted_for_one_that_was_removed(
    configured: Any, tmp_path: Path, refused: Any
) -> None:
    paths = Paths(tmp_path)
    client = configured(ONE)
    volume = use(client, paths, MOUNT, backend="kept")

    for method, path in (
        (client.NodeUnpublishVolume, {"target_path": str(paths.target)}),
        (client.NodeUnstageVolume, {"staging_target_path": str(paths.staging)}),
    ):
        refusal = refused(method, volume_id="gone/n1/v", **path)
        assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION, refusal.text
        assert f"which is volume '{volume}'" in refusal.text
    client.NodeUnpublishVolume(volume_id=volume, target_path=str(paths.target))
    client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(paths.staging))


def test_where_nothing_is_mounted_there_is_nothing_to_undo(configured: Any, tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    client = configured(ONE)

    client.NodeUnpublishVolume(volume_id="gone/n1/v", target_path=str(paths.target))
    client.NodeUnstageVolume(volume_id="gone/n1/v", staging_target_path=str(paths.staging))
