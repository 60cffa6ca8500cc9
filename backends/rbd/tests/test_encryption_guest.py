"""An encrypted image, on a real Ceph cluster."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from csi_multi.contract import AccessMode, Capability, Mount, OpenRequest, Volume
from csi_multi.host.command import LocalHost
from csi_multi.node import device_records, stage, trim, unstage
from csi_multi.node.encryption import EncryptionLayer
from csi_multi.node.requests import StageRequest

from .maps import MIB, by
from .volumes import copy, create, snapshot

if TYPE_CHECKING:
    from csi_multi_rbd.backend import RbdBackend

pytestmark = [
    pytest.mark.krbd,
    pytest.mark.skipif(not Path("/sys/bus/rbd").exists(), reason="this kernel maps no images"),
]

MARK = b"the plain text of a secret letter"
EXT4 = Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount(fs_type="ext4"))
ENCRYPTED = {
    "encryption": "luks2",
    "encryptionDiscard": "true",
    "encryptionPbkdf": "pbkdf2",
    "encryptionPbkdfTime": "100",  # the default takes seconds in a guest
}


def staged(backend: RbdBackend, volume: Volume, staging: Path) -> Path:
    staging.mkdir(exist_ok=True)
    request = StageRequest(handle=volume.handle, staging=staging, capability=EXT4, volume_context=ENCRYPTED)
    secrets = {"encryptionPassphrase": "correct horse battery staple"}
    stage.stage(LocalHost(), EncryptionLayer(LocalHost(), backend), replace(request, secrets=secrets))
    return staging


def unstaged(backend: RbdBackend, volume: Volume, staging: Path) -> None:
    unstage.unstage(LocalHost(), EncryptionLayer(LocalHost(), backend), volume.handle, staging)


def stored(backend: RbdBackend, volume: Volume) -> bytes:
    """Return what the image holds."""
    device = backend.open_device(OpenRequest(handle=volume.handle, read_only=True))
    content = device.path.read_bytes()
    backend.close_device(volume.handle)
    return content


@by("rbd")
def test_an_encrypted_image_is_noise_to_ceph_and_gives_back_what_it_does_not_use(
    backend: RbdBackend, mounter: str, tmp_path: Path
) -> None:
    volume = create(backend, "v", 64 * MIB, mounter=mounter)
    directory = staged(backend, volume, tmp_path / "staging")
    (directory / "letter").write_bytes(MARK * 1000)
    (directory / "large").write_bytes(os.urandom(16 * MIB))
    os.sync()
    (directory / "large").unlink()
    os.sync()
    (record,) = device_records.of_id(f"ceph/{volume.handle}")
    assert trim.trim(LocalHost(), record) >= 16 * MIB
    unstaged(backend, volume, directory)
    content = stored(backend, volume)

    assert content[:4] == b"LUKS"
    assert MARK not in content
    restored = copy(backend, "r", snapshot(backend, "s", volume))
    assert restored.size == volume.size
    directory = staged(backend, restored, tmp_path / "restored")
    assert (directory / "letter").read_bytes() == MARK * 1000
    unstaged(backend, restored, directory)
