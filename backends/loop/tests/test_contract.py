"""The conformance kit on this backend."""

import itertools
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config
from csi_multi_testing import Disk
from csi_multi_testing.check import CheckState, run
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.context import in_process
from csi_multi_testing.storage import MIB, Storage, setting

from csi_multi.contract import SizeRange, Stamp, VolumeRequest
from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root

CRASHES = ("crashes", "after_crash", "node_crashes")
OPEN = ("in_use", "devices", "filesystems")
BLOCKS = ("groups", "blocks")


def on(directory: Path, overprovision: float = 1000, *, own_disk: bool = False, **more: Any) -> Storage:
    """Return what the kit needs to know about an instance with this directory, which may have a disk of its own."""
    config = Config(
        directory=str(directory),
        reserve_percent=0,
        min_size=MIB,
        overprovision=overprovision,
        require_mount=own_disk,
    )

    def image(handle: str) -> Path:
        return directory / "volumes" / handle.partition("/")[2] / "image"

    damaged = directory / "damaged"

    def break_label(handle: str) -> None:
        label = image(handle).with_name("volume.json")
        label.replace(label.with_name("kept"))
        label.touch(0o600)

    def mend_label(handle: str) -> None:
        image(handle).with_name("kept").replace(image(handle).with_name("volume.json"))

    def resources() -> list[str]:
        entries = [str(path) for kind in ("volumes", "snapshots", "groups") for path in (directory / kind).glob("*")]
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

    def importable(data: bytes) -> str:
        """A file in the directory's filesystem, outside of the directory."""
        by_hand = directory.with_name(f"{directory.name}-{next(numbers)}.img")
        by_hand.write_bytes(data)
        os.truncate(by_hand, 4 * MIB)
        return str(by_hand)

    numbers = itertools.count()
    return Storage(
        connect=lambda host: LoopBackend(config, setting(host)),
        other_parameters={"sectorSize": "512"},
        size=4 * MIB,
        exact_sizes=(5 * MIB,),
        resources=resources,
        foreign=foreign,
        importable=None if own_disk else importable,  # a disk has nothing outside of its directory
        foreign_handles=("node-1/theirs-0", "node-1/theirs-1"),
        files=(directory,),
        devices=True,
        complete=bool(os.environ.get("MATRIX")),
        damage=lambda handle: image(handle).rename(damaged),
        undamage=lambda handle: damaged.rename(image(handle)),
        also_damage=((break_label, mend_label),),
        **more,
    )


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    """A filesystem that nothing else uses, in memory: the checks of the capacity measure it, and sync a lot."""
    with TemporaryDirectory(dir="/dev/shm") as directory, Disk(Path(directory), size=2048 * MIB) as disk:
        yield disk


@pytest.fixture
def storage(disk: Disk) -> Iterator[Storage]:
    yield on(
        disk.path,
        own_disk=True,
        away=disk.away,
        occupy=disk.occupy,
        power_cut=disk.power_cut,
        large=5 << 30,
    )
    for path in disk.path.iterdir():  # its volumes would count for the next one
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_contract(csi_contract: Callable[[], None]) -> None:
    csi_contract()


def failed_checks(directory: Path, groups: Collection[str], overprovision: float = 1000) -> dict[str, str]:
    """Run all checks of these groups (none: all), each in its own directory, and return the messages of failed ones."""
    return failures(groups, lambda number: on(directory / str(number), overprovision))


def failures(groups: Collection[str], storage: Callable[[int], Storage]) -> dict[str, str]:
    """Run all checks of these groups (none: all), each on a storage of its number; one of each group has to pass."""
    outcomes = [
        run(one, in_process(storage(number)))
        for number, one in enumerate(CHECKS.values())
        if not groups or one.group in groups
    ]
    failed = {one.check.name: one.text for one in outcomes if one.state is CheckState.FAILED}
    passed = {one.check.group for one in outcomes if one.state is CheckState.PASSED}
    assert failed or (passed and passed >= set(groups)), f"no check of these groups ran: {set(groups) - passed}"
    return failed


IN_MATRIX = (pytest.mark.slow, pytest.mark.skipif(not os.environ.get("MATRIX"), reason="make matrix: two minutes"))


@pytest.mark.parametrize(
    "groups",
    [pytest.param(CRASHES, marks=IN_MATRIX), ("chains",), OPEN, BLOCKS],
    ids=["crashes", "chains", "open", "blocks"],
)
def test_volumes_that_share_blocks_with_their_copies(filesystem: Callable[..., Path], groups: tuple[str, ...]) -> None:
    assert failed_checks(filesystem("xfs", memory=True), groups) == {}


@pytest.mark.parametrize("kind", ["ext4", "btrfs"])
def test_capacity_where_a_volume_can_take_all_of_it(filesystem: Callable[..., Path], kind: str) -> None:
    directory = filesystem(kind, size=200 * MIB, memory=True)

    assert failures(("capacity", "full_storage", "space_races"), lambda _: on(directory, overprovision=1)) == {}


def test_files_beside_the_directory_are_imported(filesystem: Callable[..., Path]) -> None:
    assert failed_checks(filesystem("ext4", memory=True), ("importing", "server_restarts")) == {}


def test_a_power_cut_loses_nothing_where_an_fsync_writes_one_file_only() -> None:
    """On ext4 each fsync writes the whole journal, and makes up for one that is missing."""
    with TemporaryDirectory(dir="/dev/shm") as directory, Disk(Path(directory), size=256 * MIB, kind="btrfs") as disk:
        storage = on(disk.path, own_disk=True, away=disk.away, power_cut=disk.power_cut)
        assert failures(("power_cuts",), lambda _: storage) == {}


@pytest.mark.parametrize(
    "name",
    [
        "a storage that is away is never taken for empty",
        "an open device is not taken for closed while the storage is away",
    ],
)
def test_a_directory_without_require_mount_is_missed_by_the_process_that_has_used_it(disk: Disk, name: str) -> None:
    """Unmounted, renamed, or empty. A process that starts then cannot know: that is what require_mount is for."""
    directory = disk.path / "scratch"

    @contextmanager
    def renamed(*, empty: bool) -> Iterator[None]:
        elsewhere = directory.rename(disk.path / "elsewhere")
        if empty:
            directory.mkdir()
        yield
        if empty:
            directory.rmdir()
        elsewhere.rename(directory)

    ways = (partial(renamed, empty=False), partial(renamed, empty=True))
    storage = on(directory, away=disk.away, also_away=ways)

    outcome = run(CHECKS[name], in_process(storage))

    shutil.rmtree(directory)
    assert outcome.state is CheckState.PASSED, outcome.text


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("MATRIX"), reason="make matrix: minutes")
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs"])
def test_contract_on_every_filesystem(filesystem: Callable[..., Path], kind: str) -> None:
    assert failed_checks(filesystem(kind, memory=True), ()) == {}
