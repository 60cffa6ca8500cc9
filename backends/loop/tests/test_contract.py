"""The kit for backend authors, on this backend."""

from pathlib import Path

import pytest
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config

from csi_multi.host import loopdev
from csi_multi.testing.storage import MIB, Storage, setting

pytestmark = pytest.mark.root


def on(directory: Path) -> Storage:
    """Return what the kit needs to know about an instance with this directory."""
    config = Config(directory=str(directory), reserve_percent=0, min_size=MIB, overprovision=1000)

    def resources() -> list[str]:
        entries = [str(path) for kind in ("volumes", "snapshots", "frozen") for path in (directory / kind).glob("*")]
        return entries + [f"{device} of {file}" for device, file in loopdev.bound().items() if str(directory) in file]

    return Storage(
        connect=lambda host: LoopBackend(config, setting(host)),
        other_parameters={"sectorSize": "512"},
        size=4 * MIB,
        exact_sizes=(5 * MIB,),
        resources=resources,
        files=(directory,),
        devices=True,
    )


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return on(tmp_path / "pool")


def test_contract(csi_contract) -> None:
    csi_contract()
