"""Volumes grow while a pod uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import NewClass
from .kubectl import Kubectl
from .objects import claim, pod
from .on_node import OnNode

SYS_RESOURCE = 1 << 24


def _kernel_lets_ext4_grow() -> bool:
    """A kernel refuses to grow a mounted ext4 without CAP_SYS_RESOURCE, which no container has that this one lacks."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapBnd:")[2].split()[0], 16) & SYS_RESOURCE)


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
def test_a_filesystem_grows_in_use_and_keeps_its_files(
    kubectl: Kubectl, new_class: NewClass, all_nodes: list[OnNode], fs_type: str
) -> None:
    if fs_type == "ext4" and all_nodes and not _kernel_lets_ext4_grow():
        pytest.skip("this machine has no CAP_SYS_RESOURCE: mounted ext4 cannot grow")
    name = new_class(binding="WaitForFirstConsumer", fs_type=fs_type)
    kubectl.create(claim("data", "320Mi", storage_class=name), pod("user", "data"))
    kubectl.wait_running("user")
    kubectl.run("user", "echo kept > /data/file; sync")

    kubectl.grow("data", "512Mi")

    assert int(kubectl.run("user", "df -k /data | tail -n 1").split()[1]) > 400 << 10
    assert kubectl.run("user", "cat /data/file") == "kept"


def test_a_raw_block_volume_grows_in_use_and_keeps_its_bytes(kubectl: Kubectl) -> None:
    kubectl.create(claim("raw", block=True), pod("user", "raw", block=True))
    kubectl.wait_running("user")
    kubectl.run("user", "printf raw-bytes | dd of=/dev/data bs=512 seek=7 conv=notrunc,fsync 2>&1")

    kubectl.grow("raw", "96Mi")

    kubectl.until("the pod sees it", lambda: kubectl.run("user", "blockdev --getsize64 /dev/data") == str(96 << 20))
    assert kubectl.run("user", "dd if=/dev/data bs=512 skip=7 count=1 2>/dev/null | head -c 9") == "raw-bytes"


def test_an_expansion_beyond_the_storage_is_told_and_a_smaller_one_succeeds_instead(kubectl: Kubectl) -> None:
    kubectl.create(claim("raw", block=True), pod("user", "raw", block=True))
    kubectl.wait_running("user")
    kubectl.patch("pvc", "raw", {"spec": {"resources": {"requests": {"storage": "4Ei"}}}})
    texts = kubectl.until("an event", lambda: kubectl.events("raw", "VolumeResizeFailed"))
    assert all("do not fit" in text and "delete volumes or snapshots" in text for text in texts), texts
    assert kubectl.run("user", "blockdev --getsize64 /dev/data") == str(64 << 20)

    kubectl.grow("raw", "96Mi")

    kubectl.until("the pod sees it", lambda: kubectl.run("user", "blockdev --getsize64 /dev/data") == str(96 << 20))
