"""A real driver process over the loop backend, and a search for the mounts, devices and files that remain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

CONFIG = """\
driver: {{name: attack.csi-multi.example, node: n1, default_backend: scratch, alpha: true, {driver}}}
backends:
  scratch: {{kind: loop, directory: {directory}/scratch, reserve_percent: 0}}
"""


@pytest.fixture
def make_driver(tmp_path: Path) -> Iterator[Callable[..., DriverProcess]]:
    """Return a function that starts driver processes over one directory; those that run at the end are killed."""
    made: list[DriverProcess] = []

    def make(driver: str = "log_level: info", **options: str) -> DriverProcess:
        made.append(DriverProcess(tmp_path, CONFIG.format(directory=tmp_path, driver=driver), **options))
        return made[-1]

    yield make
    for one in made:
        if hasattr(one, "process") and one.process.poll() is None:
            one.kill()
    sweep(tmp_path)  # after a failed test, so that the next one is not affected


def sweep(directory: Path) -> None:
    """Unmount and detach everything that remains below a directory."""
    host = LocalHost()
    for mount in reversed([one for one in mounts.table() if one.target.startswith(f"{directory}/")]):
        host.run("umount", mount.target, ok=(0, 1, 32))
    for device, file in loopdev.bound_devices().items():
        if file.startswith(f"{directory}/"):
            host.run("losetup", "--detach", str(device), ok=(0, 1))


@pytest.fixture
def driver(make_driver: Callable[..., DriverProcess]) -> DriverProcess:
    return make_driver()


@pytest.fixture
def client(driver: DriverProcess) -> Iterator[Client]:
    connected = driver.start()
    yield connected
    connected.close()
    driver.stop()


@pytest.fixture
def leftovers(tmp_path: Path) -> Callable[[], list[str]]:
    """Return a function that lists mounts, loop devices and files of volumes below the test's directory."""

    def look() -> list[str]:
        below = f"{tmp_path}/"
        found = [mount.target for mount in mounts.table() if mount.target.startswith(below)]
        found += [f"{device} on {file}" for device, file in loopdev.bound_devices().items() if file.startswith(below)]
        return found + sorted(
            str(path) for kind in ("volumes", "snapshots") for path in (tmp_path / "scratch" / kind).glob("*")
        )

    return look
