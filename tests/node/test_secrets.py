"""The secrets of a request reach the backend's methods on the node; methods of requests without secrets get none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from csi_multi.contract import NO_SECRETS, Device, Strings
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost
from tests.loading.contract_1_0 import OldBackend

MIB = 1 << 20
WRITER = {"mount": {"fs_type": "xfs"}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
STAGE, PUBLISH, EXPAND = {"word": "of the stage"}, {"word": "of publishing"}, {"word": "of the expansion"}


class Recording(OldBackend):
    """Keeps what every method got."""

    contract = (1, 1)

    def __init__(self, config: Any, setting: Any) -> None:
        super().__init__(config, setting)
        self.got: dict[str, list[str]] = defaultdict(list)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        self.got["find_device"].append(secrets.get("word", ""))
        return super().find_device(handle)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.got["close_device"].append(secrets.get("word", ""))
        super().close_device(handle)

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.got["refresh_device"].append(secrets.get("word", ""))
        super().refresh_device(handle)

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.got["formatting"].append(secrets.get("word", ""))
        super().formatting(handle)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self.got["formatted"].append(secrets.get("word", ""))
        super().formatted(handle)

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        self.got["has_data"].append(secrets.get("word", ""))
        return super().has_data(handle)

    def take(self) -> dict[str, set[str]]:
        """Return what was kept since the last call."""
        found = {name: set(words) for name, words in self.got.items()}
        self.got.clear()
        return found


@pytest.fixture
def backend(make: Any, tmp_path: Path) -> Iterator[tuple[Any, Recording]]:
    (tmp_path / "volumes").mkdir()
    instance = make("new", Recording, directory=str(tmp_path / "volumes"))
    yield instance, instance.backend
    for mount in reversed([one for one in mounts.table() if one.target.startswith(f"{tmp_path}/")]):
        LocalHost().run("umount", mount.target)
    for loop, file in loopdev.bound_devices().items():
        if file.startswith(f"{tmp_path}/"):
            LocalHost().run("losetup", "--detach", str(loop), ok=(0, 1))


@pytest.mark.root
def test_every_method_gets_the_secrets_of_its_request_and_undoing_needs_none(
    backend: tuple[Any, Recording], serve: Callable[..., Any], tmp_path: Path
) -> None:
    instance, recording = backend
    client = serve(instance).client
    made = client.CreateVolume(
        name="v",
        parameters={"backend": "new"},
        capacity_range={"required_bytes": 320 * MIB},
        volume_capabilities=[WRITER],
    )
    volume, staging, target = made.volume.volume_id, tmp_path / "staging", tmp_path / "target"
    staging.mkdir()
    use = {"volume_id": volume, "staging_target_path": str(staging), "volume_capability": WRITER}

    client.NodeStageVolume(**use, volume_context=made.volume.volume_context, secrets=STAGE)
    assert recording.take() == {name: {STAGE["word"]} for name in ("has_data", "formatting", "formatted")}

    client.NodePublishVolume(**use, target_path=str(target), secrets=PUBLISH)
    assert recording.take() == {"find_device": {PUBLISH["word"]}}

    size = {"required_bytes": 400 * MIB}
    client.ControllerExpandVolume(volume_id=volume, capacity_range=size)
    client.NodeExpandVolume(volume_id=volume, volume_path=str(target), capacity_range=size, secrets=EXPAND)
    assert recording.take() == {name: {EXPAND["word"]} for name in ("find_device", "refresh_device")}

    client.NodeGetVolumeStats(volume_id=volume, volume_path=str(target))
    client.NodeUnpublishVolume(volume_id=volume, target_path=str(target))
    client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(staging))
    assert recording.take() == {"find_device": {""}, "close_device": {""}}


@pytest.mark.root
def test_a_stage_that_fails_for_good_closes_the_device_with_the_secrets_of_its_request(
    backend: tuple[Any, Recording], serve: Callable[..., Any], tmp_path: Path, refused: Callable[..., Any]
) -> None:
    instance, recording = backend
    client = serve(instance).client
    made = client.CreateVolume(name="v", parameters={"backend": "new"}, volume_capabilities=[WRITER]).volume
    Path(tmp_path / "volumes" / "v").write_bytes(b"data without a signature".ljust(MIB, b"x"))

    refused(
        client.NodeStageVolume,
        volume_id=made.volume_id,
        staging_target_path=str(tmp_path),
        volume_capability=WRITER,
        volume_context=made.volume_context,
        secrets=STAGE,
    )

    assert recording.take() == {"close_device": {STAGE["word"]}}
