"""Every fault of the tests' cluster has its effect, keeps the images, and ends."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .ceph import Cluster
from .ceph_faults import frozen, full, over_quota, slow, without

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

SHORT = 3.0  # seconds without an answer that are silence
SILENT = "silent"


@pytest.fixture
def rbd(config: Config) -> Callable[..., int | str]:
    """Run rbd as the driver's user, by default in the test's namespace: its exit status, or SILENT."""
    user = ("--conf", "/dev/null", "-m", ",".join(config.monitors), "--id", config.user, "--keyring", config.keyring)

    def rbd(*words: str, namespace: str = config.namespace) -> int | str:
        where = ("--pool", config.pool, "--namespace", namespace)
        command = ("rbd", *user, "--client-mount-timeout", "2", *words, *where)
        try:
            return subprocess.run(command, capture_output=True, timeout=SHORT, check=False).returncode
        except subprocess.TimeoutExpired:
            return SILENT

    return rbd


def test_a_frozen_osd_answers_nothing_and_goes_on(cluster: Cluster, rbd: Callable[..., int | str]) -> None:
    rbd("create", "--size", "1M", "a")

    with frozen(cluster, "osd"):
        assert rbd("info", "a") == SILENT
    assert rbd("info", "a") == 0


def test_an_osd_that_was_stopped_comes_back_with_its_images(cluster: Cluster, rbd: Callable[..., int | str]) -> None:
    rbd("create", "--size", "1M", "a")

    with without(cluster, "osd"):
        assert rbd("info", "a") == SILENT
    assert rbd("info", "a") == 0


@pytest.mark.parametrize("fault", [frozen, without])
def test_a_monitor_that_does_not_answer_is_noticed(
    cluster: Cluster, rbd: Callable[..., int | str], fault: Callable[..., object]
) -> None:
    with fault(cluster, "mon"):
        assert rbd("ls") == 110  # ETIMEDOUT, after --client-mount-timeout
    assert rbd("ls") == 0


def test_images_do_without_the_manager(cluster: Cluster, rbd: Callable[..., int | str]) -> None:
    with without(cluster, "mgr"):
        assert rbd("create", "--size", "1M", "a") == 0
        assert not cluster.status()["mgrmap"]["available"]
    assert cluster.status()["mgrmap"]["available"]


@pytest.mark.parametrize("fault", [over_quota, full])
def test_a_cluster_without_room_lets_whoever_writes_wait(
    cluster: Cluster, rbd: Callable[..., int | str], fault: Callable[..., object]
) -> None:
    with fault(cluster):
        assert rbd("ls", namespace="") == 0
        assert rbd("create", "--size", "1M", "a", namespace="") == SILENT
        assert rbd("ls") == SILENT  # in a namespace reading is writing, too: rbd asserts that it is there
    assert rbd("create", "--size", "1M", "b") == 0
    assert rbd("ls") == 0


def test_a_slow_cluster_answers(cluster: Cluster, rbd: Callable[..., int | str]) -> None:
    rbd("create", "--size", "1M", "a")

    with slow(cluster, 0.02):
        before = time.monotonic()
        assert rbd("info", "a") == 0
    assert time.monotonic() - before > 0.2


@pytest.mark.ceph
def test_what_is_on_disk_survives_a_kill(tmp_path: Path) -> None:
    with Cluster(tmp_path / "ceph", store="bluestore") as cluster:
        cluster.rbd("create", "--size", "1M", f"{cluster.pool}/a")
        cluster.osd.kill()
        cluster.osd.start()
        cluster.wait(cluster.serves, "serve")

        assert cluster.rbd("ls", cluster.pool) == "a\n"


@pytest.mark.ceph
def test_a_cluster_goes_with_the_process_that_made_it(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal
from backends.rbd.tests.ceph import Cluster
cluster = Cluster(pathlib.Path({str(tmp_path / "ceph")!r})).__enter__()
print(*(daemon.pid for daemon in (cluster.mon, cluster.mgr, cluster.osd)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    project = Path(__file__).resolve().parents[3]
    python = shutil.which("python", path=str(project / ".venv" / "bin")) or "python3"

    done = subprocess.run((python, "-c", code), capture_output=True, text=True, cwd=project, timeout=60, check=False)

    pids = done.stdout.split()
    assert len(pids) == 3, done.stderr
    ends = time.monotonic() + 10
    while left := [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]:
        assert time.monotonic() < ends, left
        time.sleep(0.05)
