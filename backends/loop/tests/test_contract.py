"""The conformance kit on this backend."""

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.context import in_process
from csi_multi_testing.storage import MIB, Storage, setting

from csi_multi.contract import SizeRange, Stamp, VolumeRequest
from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root

CRASHES = ("crashes", "after_crash", "node_crashes")


def on(directory: Path) -> Storage:
    """Return what the kit needs to know about an instance with this directory."""
    config = Config(directory=str(directory), reserve_percent=0, min_size=MIB, overprovision=1000)

    def resources() -> list[str]:
        entries = [str(path) for kind in ("volumes", "snapshots", "frozen") for path in (directory / kind).glob("*")]
        return entries + [
            f"{device} of {file}" for device, file in loopdev.bound_devices().items() if str(directory) in file
        ]

    def foreign() -> None:
        """Another driver's volume and another cluster's, moved into the directory."""
        ours = setting(LocalHost())
        (directory / "volumes").mkdir(parents=True, exist_ok=True)
        for number, theirs in enumerate((replace(ours, driver="other.example"), replace(ours, cluster="other"))):
            name = f"theirs-{number}"
            if (directory / "volumes" / name).exists():
                continue
            with TemporaryDirectory(dir=directory) as elsewhere:
                other = LoopBackend(Config(directory=elsewhere, min_size=MIB), theirs)
                stamp = Stamp(driver=theirs.driver, cluster=theirs.cluster, name=name, digest="")
                other.create_volume(VolumeRequest(stamp=stamp, size=SizeRange(required=MIB)))
                Path(elsewhere, "volumes", name).rename(directory / "volumes" / name)

    return Storage(
        connect=lambda host: LoopBackend(config, setting(host)),
        other_parameters={"sectorSize": "512"},
        size=4 * MIB,
        exact_sizes=(5 * MIB,),
        resources=resources,
        foreign=foreign,
        foreign_handles=("node-1/theirs-0", "node-1/theirs-1"),
        files=(directory,),
        devices=True,
    )


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A filesystem that nothing else uses: the checks of the capacity measure it."""
    host, target = LocalHost(), tmp_path_factory.mktemp("disk")
    image = target.with_name(f"{target.name}.image")
    with image.open("wb") as file:
        file.truncate(2048 * MIB)
    host.run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=1", str(image))
    host.run("mount", "-o", "loop", str(image), str(target))
    yield target
    host.run("umount", str(target))
    image.unlink()


@pytest.fixture
def storage(disk: Path, tmp_path: Path) -> Iterator[Storage]:
    directory = disk / tmp_path.name
    yield on(directory)
    shutil.rmtree(directory, ignore_errors=True)  # its volumes would count for the next one


def test_contract(csi_contract: Callable[[], None]) -> None:
    csi_contract()


def failed_checks(directory: Path, groups: Collection[str]) -> dict[str, str]:
    """Run all checks of these groups (none: all), each in its own directory, and return the messages of failed ones."""
    messages = {}
    for number, one in enumerate(CHECKS.values()):
        if not groups or one.group in groups:
            outcome = run(one, in_process(on(directory / str(number))))
            if outcome.state is CheckState.FAILED:
                messages[one.name] = outcome.text
    return messages


def test_crashes_where_blocks_are_shared(filesystem: Callable[..., Path]) -> None:
    assert failed_checks(filesystem("xfs", memory=True), CRASHES) == {}


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("MATRIX"), reason="make matrix: minutes")
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs"])
def test_contract_on_every_filesystem(filesystem: Callable[..., Path], kind: str) -> None:
    assert failed_checks(filesystem(kind, memory=True), ()) == {}
