"""A backend that was written for contract 1.0 runs unchanged in this driver, and with this kit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.context import in_process
from csi_multi_testing.storage import MIB, Storage, setting

from csi_multi.contract import NotFound
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost
from csi_multi.loading.backend_proxy import BackendProxy
from csi_multi.loading.backend_validation import why_unusable
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client
from tests.loading.contract_1_0 import Config, OldBackend

SECRETS = {"word": "a secret that contract 1.0 does not hand over"}
WRITER = {"mount": {"fs_type": "xfs"}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}


def test_the_driver_accepts_its_class() -> None:
    assert why_unusable(OldBackend) == ""


def test_a_decorator_that_takes_whatever_is_given_does_not_hand_over_secrets(tmp_path: Path) -> None:
    """Without functools.wraps it looks as if it took secrets; the method below does not."""
    old: Any = OldBackend.find_device

    class Decorated(OldBackend):
        find_device = lambda *args, **kwargs: old(*args, **kwargs)  # noqa: E731

    assert why_unusable(Decorated) == ""
    backend = Decorated(Config(directory=str(tmp_path)), setting(LocalHost()))
    BackendProxy("old", "old", "test", unshared=True).install(backend)

    with pytest.raises(NotFound):
        backend.find_device("absent", secrets=SECRETS)  # type: ignore[call-arg]


@pytest.fixture
def client(tmp_path: Path, install: Callable[..., str]) -> Iterator[Client]:
    """A driver process with one instance of it."""
    install("old", "from tests.loading.contract_1_0 import OldBackend as Own")
    (tmp_path / "volumes").mkdir()
    driver = DriverProcess(
        tmp_path,
        f"driver: {{name: old.csi-multi.example, node: n1, default_backend: old}}\n"
        f"backends: {{old: {{kind: old, directory: {tmp_path}/volumes}}}}\n",
        environment={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
    )
    client = driver.start()
    yield client
    client.close()
    driver.stop()
    for mount in [one for one in mounts.table() if one.target.startswith(f"{tmp_path}/")]:
        LocalHost().run("umount", mount.target, ok=(0, 1, 32))
    for loop, file in loopdev.bound_devices().items():
        if file.startswith(f"{tmp_path}/"):
            LocalHost().run("losetup", "--detach", str(loop), ok=(0, 1))


@pytest.mark.root
def test_a_volume_of_it_lives_its_life_with_secrets_in_every_request(client: Client, tmp_path: Path) -> None:
    made = client.CreateVolume(
        name="v",
        capacity_range={"required_bytes": 320 * MIB},
        volume_capabilities=[WRITER],
        secrets=SECRETS,
    ).volume
    staging, target = tmp_path / "staging", tmp_path / "target"
    staging.mkdir()
    use = {"volume_id": made.volume_id, "staging_target_path": str(staging), "volume_capability": WRITER}
    for _ in range(2):
        client.NodeStageVolume(**use, volume_context=made.volume_context, secrets=SECRETS)
        client.NodePublishVolume(**use, target_path=str(target), secrets=SECRETS)
    (target / "file").write_text("data")
    size = {"required_bytes": 400 * MIB}
    client.ControllerExpandVolume(volume_id=made.volume_id, capacity_range=size, secrets=SECRETS)
    grown = client.NodeExpandVolume(volume_id=made.volume_id, volume_path=str(target), capacity_range=size)

    assert grown.capacity_bytes == 400 * MIB
    assert client.NodeGetVolumeStats(volume_id=made.volume_id, volume_path=str(target)).usage[0].total > 320 * MIB
    client.NodeUnpublishVolume(volume_id=made.volume_id, target_path=str(target))
    client.NodeUnstageVolume(volume_id=made.volume_id, staging_target_path=str(staging))
    client.DeleteVolume(volume_id=made.volume_id, secrets=SECRETS)
    assert os.listdir(tmp_path / "volumes") == [".lock"]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    config: Any = Config(directory=str(tmp_path))
    return Storage(
        connect=lambda host: OldBackend(config, setting(host)),
        size=MIB,
        secrets=SECRETS,
        resources=lambda: [name for name in os.listdir(tmp_path) if name != ".lock"],
        files=(tmp_path,),
        devices=True,
    )


@pytest.mark.root
@pytest.mark.parametrize("group", sorted({one.group for one in CHECKS.values()}))
def test_no_check_of_the_kit_fails_for_it(group: str, storage: Storage) -> None:
    outcomes = [run(one, in_process(storage)) for one in CHECKS.values() if one.group == group]

    assert [f"{one.check.name}: {one.text}" for one in outcomes if one.state is CheckState.FAILED] == []
