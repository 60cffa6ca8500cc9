"""The kit's checks of devices that are open and written, on images that a kernel maps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from csi_multi_rbd.backend import RbdBackend
from csi_multi_testing import Storage, setting
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.context import in_process

from csi_multi.contract import Backend, Host

from .maps import MIB, by

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

    from .ceph_commands import Commands

GROUPS = ("in_use", "filesystems")

pytestmark = [
    pytest.mark.krbd,
    pytest.mark.skipif(not Path("/sys/bus/rbd").exists(), reason="this kernel maps no images"),
    pytest.mark.skipif(not os.environ.get("MATRIX"), reason="make matrix: minutes for each check in a guest"),
]


@pytest.fixture
def opened(cluster: Commands, config: Config, mounter: str) -> Iterator[Storage]:
    made: list[RbdBackend] = []

    def connect(host: Host) -> Backend:
        made.append(RbdBackend(config, setting(host)))
        return made[-1]

    yield Storage(connect=connect, parameters={"mounter": mounter}, size=16 * MIB, devices=True)
    for backend in made:
        backend.close()


@by("rbd")
@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group in GROUPS])
def test_open_images_pass(opened: Storage, name: str) -> None:
    outcome = run(CHECKS[name], in_process(opened))

    if outcome.state is CheckState.SKIPPED:
        pytest.skip(outcome.text)
    assert outcome.state is CheckState.PASSED, outcome.text
