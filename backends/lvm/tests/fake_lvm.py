"""A volume group in memory: a host that runs lvm's commands on it, and the kernel's devices of its volumes.

It keeps state as LVM does: tags, what is active, conditions that are evaluated when the command runs, refusals with
status 5. The content of a volume is one word, so that a test sees what is shown to whom, and what is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from csi_multi_lvm import block_io, devices, kernel_devices

from csi_multi.contract import Result, Unavailable
from csi_multi.host import mounts

GROUP = "vg0"
EXTENT = 4 * 2**20
MIB_SECTORS = 2048
OLD, ZEROS, FILESYSTEM, DATA = "data of a deleted volume", "zeros", "an empty filesystem", "a user's data"


@dataclass(kw_only=True)
class FakeVolume:
    name: str
    uuid: str
    extents: int
    tags: set[str]
    thin: bool = False
    origin: str = ""
    content: str = OLD
    active: bool = False
    mounted: bool = False
    holders: int = 0  # that have the device open
    sequence: int = 0  # of the device
    sectors: int = 0  # written to the device

    @property
    def number(self) -> str:
        return f"253:{self.sequence}"

    def write(self, content: str, sectors: int) -> None:
        assert DATA not in (self.content, content) or content == DATA, "a user's data is overwritten"
        self.content = content
        self.sectors += sectors


@dataclass(frozen=True, kw_only=True)
class FakeDevice:
    """kernel_devices.ActiveDevice of a volume in memory."""

    volume: FakeVolume
    name: str
    uuid: str
    number: str
    sequence: str

    @property
    def size(self) -> int:
        return self.volume.extents * EXTENT

    read_only = False

    def sectors_written(self) -> int | None:
        return self.volume.sectors


@dataclass
class FakeLvm:
    """A host with one volume group. `before` and `after` are called with each command's words."""

    directory: Path
    volumes: dict[str, FakeVolume] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)  # the names of those that ran
    before: Callable[[Sequence[str]], None] = lambda _words: None
    after: Callable[[Sequence[str]], None] = lambda _words: None
    made: int = 0
    appeared: int = 0

    def run(self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = 0) -> Result:
        program, *words = argv
        if program == "dmsetup":
            return Result(0, "0 8192 linear 7:0 2048\n", "")
        assert program == "lvm", argv
        if "--config" in words:
            at = words.index("--config")
            del words[at : at + 2]
        self.before(words)
        command, *rest = words
        self.commands.append(command)
        result: Result = getattr(self, f"_{command}")(_Words(rest))
        self.after(words)
        assert result.status in ok
        return result

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """Yield a list that has the names of the block's commands after it."""
        first, found = len(self.commands), list[str]()
        yield found
        found += self.commands[first:]

    # Reports

    def _lvs(self, words: _Words) -> Result:
        rows = [self._row(one) for one in self.volumes.values() if _holds(words.one("-S"), one)]
        return _json({"lv": rows})

    def _fullreport(self, words: _Words) -> Result:
        used = sum(one.extents for one in self.volumes.values())
        numbers = {"vg_extent_size": EXTENT, "vg_extent_count": 1000, "vg_free_count": 1000 - used}
        group = {"vg_name": GROUP, "vg_uuid": "G", **numbers, "vg_missing_pv_count": 0, "vg_mda_free": 2**30}
        disk = {"pv_name": "/dev/none", "pv_pe_count": 1000, "pv_pe_alloc_count": used}
        lv = [self._row(one) for one in self.volumes.values()]
        return _json({"vg": [group], "pv": [{**disk, "pv_missing": "", "pv_allocatable": "1"}], "lv": lv})

    def _row(self, one: FakeVolume) -> dict[str, str]:
        snapshots = any(other.origin == one.name for other in self.volumes.values())
        return {
            "lv_name": one.name,
            "vg_uuid": "G",
            "lv_uuid": one.uuid,
            "lv_size": str(one.extents * EXTENT),
            "lv_tags": ",".join(sorted(one.tags)),
            "lv_layout": "thin,sparse" if one.thin else "linear",
            "lv_role": "thicksnapshot" if one.origin else "public,origin,thickorigin" if snapshots else "public",
            "origin": one.origin,
            "lv_active": "active" if one.active else "",
            "lv_device_open": "1" if one.holders or one.mounted else "",
        }

    # Changes

    def _lvcreate(self, words: _Words) -> Result:
        name, path = words.one("-n"), words.rest()[-1]
        if name in self.volumes:
            return _refused(f'Logical Volume "{name}" already exists in volume group "{GROUP}"')
        self.made += 1
        origin = path.removeprefix(f"{GROUP}/") if "-s" in words.words else ""
        extents = self.volumes[origin].extents if origin else int(words.one("-l"))
        new = FakeVolume(name=name, uuid=f"U{self.made}", extents=extents, tags=set(words.all("--addtag")))
        new.origin = origin
        new.content = self.volumes[origin].content if origin else OLD
        self.volumes[name] = new
        return Result(0, f'  Logical volume "{name}" created.\n', "")

    def _lvchange(self, words: _Words) -> Result:
        name = words.rest()[-1].removeprefix(f"{GROUP}/")
        one = self.volumes.get(name)
        if one is None:
            return _refused(f'Failed to find logical volume "{GROUP}/{name}"')
        if not _holds(words.one("-S"), one):
            return Result(0, "", "")
        if "-ay" in words.words:
            assert "-K" in words.words, "it would be skipped"
            for each in [one, *(other for other in self.volumes.values() if other.origin == name)]:
                self._appear(each)
        if "-an" in words.words:
            group = [one, *(other for other in self.volumes.values() if other.origin == name)]
            if any(each.holders or each.mounted for each in group):
                return _refused(f"Logical volume {GROUP}/{name} in use.")
            for each in group:
                each.active = False
        added, removed = set(words.all("--addtag")), set(words.all("--deltag"))
        one.tags = (one.tags - removed) | added
        return Result(0, f"  Logical volume {GROUP}/{name} changed.\n" if added or removed else "", "")

    def _appear(self, one: FakeVolume) -> None:
        if not one.active:
            self.appeared += 1
            one.active, one.sequence, one.sectors = True, self.appeared, 0

    def _lvremove(self, words: _Words) -> Result:
        gone = [one.name for one in self.volumes.values() if _holds(words.one("-S"), one)]
        for name in gone:
            del self.volumes[name]
        return Result(0, "".join(f'  Logical volume "{name}" successfully removed.\n' for name in gone), "")

    def _lvextend(self, words: _Words) -> Result:
        self.volumes[words.rest()[-1].removeprefix(f"{GROUP}/")].extents = int(words.one("-l"))
        return Result(0, "", "")

    # The kernel

    def find_device(self, name: str) -> FakeDevice | None:
        for one in self.volumes.values():
            if one.active and name == f"{GROUP}-{one.name.replace('-', '--')}":
                uuid, sequence = f"LVM-G{one.uuid}", str(one.sequence)
                return FakeDevice(volume=one, name=name, uuid=uuid, number=one.number, sequence=sequence)
        return None

    def volume_at(self, path: Path) -> FakeVolume:
        """Return the active volume of a device node. Raises Unavailable."""
        for one in self.volumes.values():
            if one.active and one.name == path.name:
                return one
        raise Unavailable(f"cannot open {path}: it does not exist")

    def device_node(self, _host: object, device: FakeDevice) -> Path:
        path = self.directory / device.volume.name
        path.touch()
        return path

    @contextmanager
    def held(self, path: Path) -> Iterator[bool]:
        one = self.volume_at(path)
        alone = not one.holders and not one.mounted
        one.holders += 1
        try:
            yield alone
        finally:
            one.holders -= 1

    def scrub(self, path: Path, *, held: bool) -> None:
        one = self.volume_at(path)
        assert held, "another process may open it"
        assert (one.holders, one.mounted) == (1, False), "it is in use"
        one.write(ZEROS, 2 * MIB_SECTORS)


@dataclass
class _Words:
    """The words of a command."""

    words: list[str]

    def all(self, option: str) -> list[str]:
        return [value for word, value in zip(self.words, self.words[1:], strict=False) if word == option]

    def one(self, option: str) -> str:
        return next(iter(self.all(option)), "")

    def rest(self) -> list[str]:
        return [word for word in self.words if not word.startswith("-")]


COMPARISON = re.compile(r'(lv_\w+)(!?=)(?:"([^"]*)"|\{"([^"]*)"\})')


def _holds(condition: str, one: FakeVolume) -> bool:
    """Evaluate a condition of lvmreport(7)."""
    found: dict[str, Sequence[str]] = {
        "lv_name": one.name,
        "lv_tags": sorted(one.tags),
        "lv_active": "active" if one.active else "",
        "lv_role": ["public"],
    }

    def compare(match: re.Match[str]) -> str:
        name, operator, text, item = match.groups()
        same = item in found[name] if text is None else text == found[name]
        return str(same == (operator == "="))

    words = COMPARISON.sub(compare, condition).replace("&&", " and ").replace("||", " or ")
    return bool(eval(words or "True", {"__builtins__": {}}))


def _json(section: dict[str, Any]) -> Result:
    return Result(0, json.dumps({"report": [section]}), "")


def _refused(text: str) -> Result:
    return Result(5, "", f"  {text}\n")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLvm:
    """A volume group in memory, whose devices the backend finds in the kernel."""
    lvm = FakeLvm(tmp_path)
    monkeypatch.setattr(kernel_devices, "find_device", lvm.find_device)
    monkeypatch.setattr(kernel_devices, "device_node", lvm.device_node)
    monkeypatch.setattr(kernel_devices, "suspended_devices", lambda *_names: [])
    monkeypatch.setattr(kernel_devices, "in_use", lambda path, _number: lvm.volume_at(path).mounted)
    monkeypatch.setattr(devices, "set_read_only", lambda *_: None)
    monkeypatch.setattr(mounts, "is_node_bound", lambda _number: False)
    monkeypatch.setattr(block_io, "held", lvm.held)
    monkeypatch.setattr(block_io, "scrub", lvm.scrub)
    return lvm
