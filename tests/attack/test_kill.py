"""The driver is killed at random moments of 100 whole lifecycles; the orchestrator continues by its rules."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.orchestrator import Orchestrator

from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

pytestmark = [pytest.mark.root, pytest.mark.slow]

MIB = 1 << 20
SIZE = 24 * MIB
LIFECYCLES = 500 if os.environ.get("MATRIX") else 40
WORKERS = 2
SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))


class Killer:
    """Kills the driver at random moments and starts it again at once, as a supervisor does."""

    def __init__(self, driver: DriverProcess, chance: random.Random) -> None:
        self._driver = driver
        self._chance = chance
        self._client = driver.start()
        self._done = threading.Event()
        self.kills = 0

    def client(self) -> Client:
        return self._client

    @contextmanager
    def killing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _run(self) -> None:
        starting = (
            0.0  # seconds of the last start: on a busy machine the driver lives longer, too, and gets something done
        )
        while not self._done.wait(self._chance.uniform(0.02, max(0.5, starting))):
            self._driver.kill()
            self.kills += 1
            began = time.monotonic()
            old, self._client = self._client, self._driver.start()
            starting = time.monotonic() - began
            old.close()

    def stop(self) -> int:
        self._client.close()
        return self._driver.stop()


def test_nothing_is_lost_or_leaked_when_the_driver_is_killed_at_random(
    driver: DriverProcess, tmp_path: Path, leftovers: Callable[[], list[str]]
) -> None:
    print(f"seed {SEED}")
    killer = Killer(driver, random.Random(SEED))
    orchestrator = Orchestrator(killer.client)
    failures: list[BaseException] = []
    numbers = iter(range(LIFECYCLES))

    def work() -> None:
        for number in numbers:
            try:
                lifecycle(orchestrator, tmp_path, number)
            except BaseException as error:
                failures.append(error)
                raise

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    with killer.killing():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(f"{killer.kills} kills, {orchestrator.retries} retried calls, {LIFECYCLES} lifecycles")
    code = killer.stop()

    assert failures == []
    assert leftovers() == []
    assert code == 0
    assert killer.kills > LIFECYCLES / 10


def lifecycle(orchestrator: Orchestrator, directory: Path, number: int) -> None:
    """Create, fill, snapshot, restore, compare, expand, compare, delete."""
    fs_type, size = "ext4", SIZE
    volume = create(orchestrator, f"life-{number}", size, fs_type)
    with mounted(orchestrator, directory, volume, fs_type) as path:
        wanted = fill(path)
        snapshot = orchestrator.call("CreateSnapshot", source_volume_id=volume, name=f"snap-{number}").snapshot
    restored = create(orchestrator, f"copy-{number}", size, fs_type, snapshot.snapshot_id)
    orchestrator.call("ControllerExpandVolume", volume_id=restored, capacity_range={"required_bytes": 2 * size})
    with mounted(orchestrator, directory, restored, fs_type) as path:  # grows at stage
        assert wanted == checksum(path)
        assert shutil.disk_usage(path).total > 1.5 * size
    with mounted(orchestrator, directory, volume, fs_type) as path:
        assert wanted == checksum(path)
    orchestrator.call("DeleteVolume", volume_id=restored)
    orchestrator.call("DeleteVolume", volume_id=volume)
    orchestrator.call("DeleteSnapshot", snapshot_id=snapshot.snapshot_id)


def create(orchestrator: Orchestrator, name: str, size: int, fs_type: str, snapshot: str = "") -> str:
    source = {"volume_content_source": {"snapshot": {"snapshot_id": snapshot}}} if snapshot else {}
    wanted: dict[str, Any] = {"capacity_range": {"required_bytes": size}, "volume_capabilities": [capability(fs_type)]}
    return str(orchestrator.call("CreateVolume", name=name, **wanted, **source).volume.volume_id)


@contextmanager
def mounted(orchestrator: Orchestrator, directory: Path, volume: str, fs_type: str) -> Iterator[Path]:
    name = volume.replace("/", "-")
    staging, target = directory / f"staging-{name}", directory / f"target-{name}"
    staging.mkdir(exist_ok=True)
    fields = {"volume_id": volume, "staging_target_path": str(staging)}
    orchestrator.call("NodeStageVolume", **fields, volume_capability=capability(fs_type))
    orchestrator.call("NodePublishVolume", **fields, target_path=str(target), volume_capability=capability(fs_type))
    yield target
    orchestrator.call("NodeUnpublishVolume", volume_id=volume, target_path=str(target))
    assert not target.exists()
    orchestrator.call("NodeUnstageVolume", **fields)
    staging.rmdir()


def capability(fs_type: str) -> dict[str, Any]:
    return {"mount": {"fs_type": fs_type}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}


def fill(path: Path) -> str:
    (path / "data").write_bytes(os.urandom(2 * MIB))
    return checksum(path)


def checksum(path: Path) -> str:
    return hashlib.sha256((path / "data").read_bytes()).hexdigest()
