"""A thin pool in memory, beside fake_lvm.py: its thin devices by their numbers, its messages, and what is suspended.

It holds what LVM and the kernel hold: a snapshot by lvm of a volume that is suspended damages the pool; lvm waits while
another process has its lock; what is suspended accepts no writes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest
from csi_multi_lvm import kernel_devices
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import Config
from csi_multi_testing.storage import NODE

from csi_multi.contract import CommandFailed, Result, Setting
from csi_multi.host import mounts

from .fake_lvm import EXTENT, GROUP, FakeDevice, FakeLvm, FakeVolume, _holds, _json, _Words

POOL = "pool0"


@dataclass
class FakePool(FakeLvm):
    """A volume group whose volumes are all thin."""

    numbers: dict[str, int] = field(default_factory=dict)  # of logical volumes, in the pool
    contents: dict[int, str] = field(default_factory=dict)  # of the thin devices that the pool has
    pools: dict[str, str] = field(default_factory=dict)  # of logical volumes that are in another one
    origins: dict[str, str] = field(default_factory=dict)
    suspended: set[str] = field(default_factory=set)  # logical volumes
    full: bool = False

    def run(self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = 0) -> Result:
        if argv[0] == "dmsetup":
            self.before(argv)
            result = getattr(self, f"_dm_{argv[1]}")([one for one in argv[2:] if not one.startswith("--")])
            self.after(argv)
            return result
        assert not self._locked(), "lvm would wait for its lock for ever"
        return super().run(*argv, stdin=stdin, ok=ok, timeout=timeout)

    def _locked(self) -> bool:
        """Return whether a process has lvm's lock of the group."""
        path = self.directory / f"V_{GROUP}"
        if not path.exists():
            return False
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def write(self, name: str, content: str) -> None:
        assert name not in self.suspended, "it would wait"
        self.contents[self.numbers[name]] = content

    def content(self, name: str) -> str:
        return self.contents[self.numbers[name]]

    # lvm

    def _lvmconfig(self, _words: _Words) -> Result:
        return Result(0, f'locking_dir="{self.directory}"\n', "")

    def _lvcreate(self, words: _Words) -> Result:
        if "-s" in words.words:
            origin = words.rest()[-1].removeprefix(f"{GROUP}/")
            assert origin not in self.suspended, "the transaction id of the pool would be wrong"
            if self.full:
                return Result(5, "", "  Free space in pool vg0/pool0 reached threshold.\n")
        if size := words.one("-V"):
            words = _Words([*words.words[:-1], "-l", str(int(size[:-1]) // EXTENT), GROUP])
        result = super()._lvcreate(words)
        if result.status == 0:
            self._add_thin(self.volumes[words.one("-n")])
        return result

    def _add_thin(self, one: FakeVolume) -> None:
        self.origins[one.name], one.origin, one.thin = (
            one.origin,
            "",
            True,
        )  # what is thin is not active with its origin
        self.numbers[one.name] = number = max(self.numbers.values(), default=0) + 1
        self.contents[number] = self.content(self.origins[one.name]) if self.origins[one.name] else "zeros"

    def _lvremove(self, words: _Words) -> Result:
        result = super()._lvremove(words)
        for name in self.numbers.keys() - self.volumes.keys():
            self.contents.pop(self.numbers.pop(name), None)  # lvm accepts that the pool does not have it
        return result

    def _lvchange(self, words: _Words) -> Result:
        """lvchange of all volumes for which a condition holds, too."""
        if words.rest()[-1] != GROUP:
            return super()._lvchange(words)
        names = [row["lv_name"] for row in self._rows(words.one("-S"))]
        for name in names:
            words = _Words([*words.words[: words.words.index("-S")], f"{GROUP}/{name}"])
            super()._lvchange(words)
        return Result(0, "", "")

    def _lvs(self, words: _Words) -> Result:
        if "--segments" in words.words:
            names = [row["lv_name"] for row in self._rows(words.one("-S"))]
            return _json({"seg": [{"lv_name": name, "thin_id": str(self.numbers.get(name, ""))} for name in names]})
        return _json({"lv": self._rows(words.one("-S"))})

    def _rows(self, condition: str) -> list[dict[str, str]]:
        return [self._row(one) for one in self.volumes.values() if _holds(condition, one)]

    def _fullreport(self, words: _Words) -> Result:
        sections = json.loads(super()._fullreport(words).stdout)["report"][0]
        return _json({**sections, "seg": [{"lv_name": POOL, "zero": "1"}]})

    def _row(self, one: FakeVolume) -> dict[str, str]:
        if one.name == POOL:
            return {**super()._row(one), "lv_layout": "thin,pool", "data_percent": "1", "metadata_percent": "1"}
        origin = self.origins[one.name]
        origin = origin if origin in self.volumes else ""
        state = {"pool_lv": self.pools.get(one.name, POOL), "lv_suspended": "1" if one.name in self.suspended else ""}
        return {**super()._row(one), "lv_role": "public", "origin": origin, **state}

    # dmsetup

    def _dm_message(self, words: Sequence[str]) -> Result:
        target, _sector, message = words
        assert target == f"{GROUP}-{POOL}-tpool"
        assert any(one.active for one in self.volumes.values()), "the pool has no device"
        verb, number, *origin = message.split()
        if verb == "delete":
            assert not any(self.volumes[name].active for name, one in self.numbers.items() if one == int(number))
            del self.contents[int(number)]
        elif self.full or int(number) in self.contents:
            raise CommandFailed(("dmsetup",), Result(1, "", "device-mapper: message ioctl failed"))
        else:
            self.contents[int(number)] = self.contents[int(origin[0])]
        return Result(0, "", "")

    def _dm_suspend(self, words: Sequence[str]) -> Result:
        assert self._locked(), "lvm could make a snapshot of a suspended volume"
        self.suspended |= {self._name(one) for one in words}
        return Result(0, "", "")

    def _dm_resume(self, words: Sequence[str]) -> Result:
        self.suspended -= {self._name(one) for one in words}
        return Result(0, "", "")

    def _dm_clear(self, _words: Sequence[str]) -> Result:
        return Result(0, "", "")

    def _dm_status(self, _words: Sequence[str]) -> Result:
        return Result(0, "0 8192 thin 0 -\n", "")

    def _name(self, device: str) -> str:
        return next(one for one in self.volumes if device == f"{GROUP}-{one.replace('-', '--')}")

    def find_device(self, name: str) -> FakeDevice | None:
        found = super().find_device(name)
        return found and PoolDevice(pool=self, **{one.name: getattr(found, one.name) for one in fields(found)})

    def suspended_devices(self, *names: str) -> list[str]:
        return [name for name in names if name in {f"{GROUP}-{one.replace('-', '--')}" for one in self.suspended}]


@dataclass(frozen=True, kw_only=True)
class PoolDevice(FakeDevice):
    pool: FakePool

    @property
    def suspended(self) -> bool:
        return self.volume.name in self.pool.suspended


@pytest.fixture
def fake_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePool:
    lvm = FakePool(tmp_path)
    lvm.volumes[POOL] = FakeVolume(name=POOL, uuid="P", extents=1000, tags=set())
    monkeypatch.setattr(kernel_devices, "find_device", lvm.find_device)
    monkeypatch.setattr(kernel_devices, "device_node", lvm.device_node)
    monkeypatch.setattr(kernel_devices, "suspended_devices", lvm.suspended_devices)
    monkeypatch.setattr(kernel_devices, "in_use", lambda path, _number: lvm.volume_at(path).mounted)
    monkeypatch.setattr(mounts, "is_node_bound", lambda _number: False)
    return lvm


def backend_over(lvm: FakePool) -> LvmBackend:
    """Create a backend as a new process does."""
    config = Config(volume_group=GROUP, thin_pool=POOL, reserve_percent=0, overprovision=1000, min_size=EXTENT)
    return LvmBackend(config, Setting(instance="disks", driver="multi.csi.test", cluster="c", node=NODE, host=lvm))
