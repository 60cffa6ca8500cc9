"""The kit for backend authors, on thin and on thick volumes of real LVM."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import Config
from csi_multi_testing.protocol import write_to
from csi_multi_testing.storage import MIB, NODE, Storage, setting

from csi_multi.contract import AlreadyExists, SizeRange, Stamp, VolumeRequest
from csi_multi.host.command import LocalHost

from .group import EXTENT, GIB, Group, Lvm, volume_group

pytestmark = pytest.mark.devicemapper

OTHER = {"thin": {"type": "linear"}, "linear": {"type": "linear", "wipe": "none"}}
BY_HAND = "by-hand-"
NUMBERS = itertools.count(1)
THEIRS = ("theirs-0", "theirs-1", "theirs-2")  # leaves of other owners' volumes


@dataclass(frozen=True)
class Instance:
    """An instance whose volumes have this type."""

    group: Group
    type: str

    @property
    def config(self) -> Config:
        return Config(
            volume_group=self.group.name,
            thin_pool=self.group.pool,
            reserve_percent=0,
            overprovision=1000,
            min_size=EXTENT,
        )

    def resources(self) -> list[str]:
        """Return everything in the group, and which of it has a device."""
        devices = [name for name in self.group.devices() if "-csi" in name.removeprefix("csi--test")]
        return [*self.group.left(), *(f"device {name}" for name in devices)]

    def foreign(self) -> None:
        """Create another driver's volume, another cluster's, and one by hand with a name of this driver's form."""
        ours = setting(LocalHost())
        others = (replace(ours, driver="other.example"), replace(ours, cluster="other"))
        for leaf, theirs in zip(THEIRS, others, strict=False):
            stamp = Stamp(driver=theirs.driver, cluster=theirs.cluster, name=leaf, digest="")
            with suppress(AlreadyExists):
                LvmBackend(self.config, theirs).create_volume(VolumeRequest(stamp=stamp, size=SizeRange(required=MIB)))
        if (by_hand := f"csi-{THEIRS[2]}") not in self.group.left():
            self.group.lvm.run("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "1", "-n", by_hand, self.group.name)

    def importable(self, data: bytes) -> str:
        name = f"{BY_HAND}{next(NUMBERS)}"
        thin = ("-V", f"{4 * EXTENT}b", "--thinpool", self.group.pool)
        kind = thin if self.type == "thin" else ("-l", "4", "-Wn", "-Zn")
        self.group.lvm.run("lvcreate", "-qq", "-ay", *kind, "-n", name, self.group.name)
        write_to(Path("/dev/mapper") / f"{self.group.name.replace('-', '--')}-{name.replace('-', '--')}", 0, data)
        self.group.lvm.run("lvchange", "-qq", "-an", f"{self.group.name}/{name}")
        return f"{self.group.name}/{name}"

    def clear(self) -> None:
        """Remove what was created by hand; the tests must have removed the rest."""
        left = self.group.left()
        by_hand = {name for name in left if name.startswith(BY_HAND)}
        for name in by_hand | ({f"csi-{leaf}" for leaf in THEIRS} & set(left)):
            self.group.lvm.run("lvremove", "-qq", "-y", f"{self.group.name}/{name}")

    @contextmanager
    def away(self) -> Iterator[None]:
        """LVM does not see the disks of the group, so that it knows none of this name."""
        self.group.lvm.forget(*self.group.disks)
        try:
            yield
        finally:
            self.group.lvm.use(*self.group.disks)

    def damage(self, handle: str) -> None:
        """Suspend the volume: whatever it is asked for waits."""
        path = f"{self.group.name}/csi-{handle.rpartition('/')[2]}"
        self.group.lvm.run("lvchange", "-qq", "-ay", "-K", path)
        self.group.lvm.run("dmsetup", "suspend", f"/dev/{path}")

    def undamage(self, handle: str) -> None:
        path = f"{self.group.name}/csi-{handle.rpartition('/')[2]}"
        self.group.lvm.run("dmsetup", "resume", f"/dev/{path}")
        self.group.lvm.run("lvchange", "-qq", "-an", path)

    def storage(self) -> Storage:
        return Storage(
            connect=lambda host: LvmBackend(self.config, setting(host)),
            parameters={"type": self.type},
            other_parameters=OTHER[self.type],
            size=4 * EXTENT,
            exact_sizes=(3 * EXTENT, 5 * EXTENT),
            resources=self.resources,
            foreign=self.foreign,
            importable=self.importable,
            foreign_handles=tuple(f"{NODE}/{self.group.name}/{leaf}" for leaf in THEIRS),
            devices=True,
            away=self.away,
            damage=self.damage,
            undamage=self.undamage,
            read_only_calls=("lvm lvs", "lvm fullreport", "lvm lvmconfig"),
        )


@pytest.fixture(scope="module", params=["thin", "linear"])
def instance(request: pytest.FixtureRequest, lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    pool = {"thin": 512 * MIB}.get(request.param, 0)
    with volume_group(lvm, tmp_path_factory.mktemp("kit"), disks=1, size=GIB, pool=pool) as group:
        yield Instance(group, request.param)


@pytest.fixture
def storage(instance: Instance) -> Iterator[Storage]:
    yield instance.storage()
    instance.clear()


def test_contract(csi_contract: Callable[[], None]) -> None:
    csi_contract()
