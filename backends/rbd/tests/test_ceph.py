"""The cluster of the tests: its state, and that its leak check finds leaks."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from .ceph import Cluster
from .ceph_commands import CephFailed, again_after_a_crash

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config


def test_everything_in_a_namespace_is_seen_and_goes_with_it(cluster: Cluster, namespace: str) -> None:
    def rbd(*words: str) -> None:
        cluster.rbd(*words, "--pool", cluster.pool, "--namespace", namespace)

    rbd("create", "--size", "1M", "parent")
    rbd("snap", "create", "parent@cut")
    rbd(
        "clone",
        "--rbd-default-clone-format",
        "2",
        "parent@cut",
        "child",
        "--dest-pool",
        cluster.pool,
        "--dest-namespace",
        namespace,
    )
    rbd("snap", "rm", "--no-progress", "parent@cut")
    rbd("create", "--size", "1M", "old")
    rbd("trash", "mv", "old")

    found = cluster.everything(namespace)

    assert [line for line in found if "@" not in line] == ["image child", "image parent", "trash old"]
    assert [line.endswith(" (trash)") for line in found if "@" in line] == [True]
    cluster.remove(namespace)
    cluster.add(namespace)
    assert cluster.everything(namespace) == []


def test_a_command_of_the_tests_that_crashed_is_run_again_and_one_that_always_crashes_fails() -> None:
    answers = [(-6, b"", b"terminate called"), (0, b"bytes", b"")]

    assert again_after_a_crash(lambda: answers.pop(0)) == (0, b"bytes", b"")
    assert again_after_a_crash(lambda: (-6, b"", b"")) == (-6, b"", b"")


def test_bytes_of_an_image_come_from_a_command_that_says_why_it_failed(cluster: Cluster) -> None:
    with pytest.raises(CephFailed, match="No such file"):
        cluster.run_bytes("rbd", "export-diff", f"{cluster.pool}/absent", "-")


def test_a_namespace_goes_though_a_snapshot_keeps_an_object(cluster: Cluster) -> None:
    cluster.add("kept")
    image = f"{cluster.pool}/kept/written"
    write = ("bench", "--io-type", "write", "--io-size", "4096", "--io-total", "4096", image)
    cluster.rbd("create", "--size", "8M", image)
    cluster.rbd(*write)
    cluster.rbd("snap", "create", "--no-progress", f"{image}@cut")
    cluster.rbd(*write)

    cluster.remove("kept")

    assert cluster.rbd("namespace", "ls", cluster.pool, "--format", "json").find("kept") == -1
    where = ("--pool", cluster.pool, "--namespace", "kept")
    (left,) = cluster.rados(*where, "ls").splitlines()
    assert left.startswith("rbd_data.")


def test_whoever_has_an_image_open_is_seen(cluster: Cluster, namespace: str) -> None:
    cluster.rbd("create", "--size", "1M", f"{cluster.pool}/{namespace}/a")
    command = ("rbd", "watch", f"{cluster.pool}/{namespace}/a", "--conf", str(cluster.directory / "ceph.conf"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watching:
        assert watching.stdout
        assert watching.stdout.readline() == b"press enter to exit...\n"
        (found,) = cluster.watched(namespace)

    assert found.startswith("watcher of ")
    assert cluster.watched(namespace) == []


def test_the_drivers_user_has_its_pool_and_no_other(cluster: Cluster, config: Config) -> None:
    as_user = ("--conf", "/dev/null", "-m", ",".join(config.monitors), "--id", config.user, "--keyring", config.keyring)
    cluster.ceph("osd", "pool", "create", "other", "1")

    assert cluster.rbd(*as_user, "ls", "--pool", config.pool, "--namespace", config.namespace) == ""
    with pytest.raises(CephFailed, match="Operation not permitted"):
        cluster.rbd(*as_user, "create", "--size", "1M", "other/image")
