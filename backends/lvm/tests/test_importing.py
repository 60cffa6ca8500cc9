"""A logical volume that was created by hand is imported with its data, and gets its name back when it is released."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import Config
from csi_multi_lvm.explain import assumed_report

from csi_multi.contract import (
    IMPORTED,
    AlreadyExists,
    Blank,
    DryRunReport,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
    Result,
    Setting,
    Stamp,
    StorageError,
)

from . import volume_steps
from .group import EXTENT, Group

GIB = 2**30
CONFIG = Config(volume_group="vg0", thin_pool="pool0", udev="no")
Row = dict[str, str]


class Died(BaseException):
    """The process dies here; it is no Exception, so no error handling runs."""


class Machine:
    """A node whose lvm has rows, which it reports, tags and renames as the real one does."""

    def __init__(self, **rows: Row) -> None:
        self.rows = {name: {"lv_size": str(GIB), "lv_layout": "linear", **row} for name, row in rows.items()}
        self.before: str = ""  # dies before this command

    def run(self, *argv: str, **_: Any) -> Result:
        verb, words = argv[1], list(argv[2:])
        if verb == self.before:
            raise Died(verb)
        return {"fullreport": self._report, "lvs": self._look, "lvchange": self._tag, "lvrename": self._rename}[verb](
            words
        )

    def _report(self, _: list[str]) -> Result:
        report = msgspec.json.decode(assumed_report(CONFIG))
        report["report"][0]["lv"] += self._listed()
        return Result(0, msgspec.json.encode(report).decode(), "")

    def _look(self, words: list[str]) -> Result:
        names = re.findall(r'lv_name="([^"]+)"', " ".join(words))
        rows = [row for row in self._listed() if row["lv_name"] in names]
        return Result(0, msgspec.json.encode({"report": [{"lv": rows}]}).decode(), "")

    def _listed(self) -> list[Row]:
        return [{"lv_name": name, "vg_uuid": "u", **row} for name, row in self.rows.items()]

    def _tag(self, words: list[str]) -> Result:
        if not {"--addtag", "--deltag"} & {*words}:
            return Result(3, "", "Need 1 or more options")
        row = self.rows[words[-1].partition("/")[2]]
        tags = {*filter(None, row.get("lv_tags", "").split(","))}
        for option, tag in itertools.pairwise(words):
            tags = tags | {tag} if option == "--addtag" else tags - {tag} if option == "--deltag" else tags
        row["lv_tags"] = ",".join(sorted(tags))
        return Result(0, "", "")

    def _rename(self, words: list[str]) -> Result:
        _, old, new = words[-3:]
        if new in self.rows:
            return Result(5, "", f'Logical Volume "{new}" already exists in volume group "vg0"')
        self.rows[new] = self.rows.pop(old)
        return Result(0, "", "")


def over(machine: Machine) -> LvmBackend:
    return LvmBackend(CONFIG, Setting(instance="fast", driver="d", cluster="c", node="node-1", host=machine))


def stamp(name: str = "old-data", driver: str = "d") -> Stamp:
    return Stamp(driver=driver, cluster="c", name=name, digest=IMPORTED, context={"fsType": "ext4"})


@pytest.mark.parametrize("given", ["data", "vg0/data", "/dev/vg0/data"])
def test_an_imported_volume_belongs_to_the_driver(given: str) -> None:
    machine = Machine(data={"lv_tags": "team-shop"})
    lvm = over(machine)

    made = lvm.import_volume(given, stamp())

    assert made == lvm.get_volume(made.handle) == lvm.find_volume("old-data")
    assert (made.handle, made.size) == ("node-1/vg0/old-data", GIB)
    assert [*machine.rows] == ["csi-old-data"]
    assert "team-shop" in machine.rows["csi-old-data"]["lv_tags"]


def test_a_released_volume_is_as_before_the_import() -> None:
    machine = Machine(data={"lv_tags": "team-shop"})
    before = {name: {**row} for name, row in machine.rows.items()}
    made = over(machine).import_volume("data", stamp())

    assert over(machine).release_volume(made.handle) == "logical volume vg0/data"
    assert machine.rows == before


def test_importing_it_again_is_the_same_volume() -> None:
    machine = Machine(data={})

    assert over(machine).import_volume("data", stamp()) == over(machine).import_volume("data", stamp())


@pytest.mark.parametrize("verb", ["lvchange", "lvrename"])
@pytest.mark.parametrize("name", ["old-data", "other"])
def test_an_interrupted_import_is_begun_again(verb: str, name: str) -> None:
    machine = Machine(data={})
    machine.before = verb
    with pytest.raises(Died):
        over(machine).import_volume("data", stamp())
    machine.before = ""

    made = over(machine).import_volume("data", stamp(name))

    assert over(machine).get_volume(made.handle).stamp == stamp(name)
    over(machine).release_volume(made.handle)
    assert machine.rows["data"]["lv_tags"] == ""


@pytest.mark.parametrize("verb", ["lvchange", "lvrename"])
def test_after_an_interrupted_release_it_can_be_imported_again(verb: str) -> None:
    machine = Machine(data={})
    made = over(machine).import_volume("data", stamp())
    machine.before = verb
    with pytest.raises(Died):
        over(machine).release_volume(made.handle)
    machine.before = ""

    assert over(machine).import_volume("data", stamp()) == made


@pytest.mark.parametrize("verb", ["lvchange", "lvrename"])
def test_an_interrupted_release_is_completed_when_it_is_repeated(verb: str) -> None:
    machine = Machine(data={"lv_tags": "team-shop"}, other={})
    made = over(machine).import_volume("data", stamp())
    over(machine).import_volume("other", stamp("other"))
    machine.before = verb
    with pytest.raises(Died):
        over(machine).release_volume(made.handle)
    machine.before = ""

    assert over(machine).release_volume(made.handle) == "logical volume vg0/data"
    assert machine.rows["data"]["lv_tags"] == "team-shop"
    with pytest.raises(NotFound):
        over(machine).release_volume(made.handle)
    assert over(machine).find_volume("other")


@pytest.mark.parametrize(
    ("row", "kind", "words"),
    [
        ({"lv_tags": "csi.owner=other/c"}, AlreadyExists, "belongs to other/c"),
        ({"lv_layout": "thin,pool"}, FailedPrecondition, "is a pool"),
        ({"lv_layout": "cache,pool"}, FailedPrecondition, "is a pool"),
        ({"lv_role": "public,snapshot,thicksnapshot", "origin": "base"}, FailedPrecondition, "is removed with base"),
        ({"lv_role": "public,origin,thickorigin"}, FailedPrecondition, "thick snapshots"),
        (
            {"lv_layout": "thin,sparse", "pool_lv": "other"},
            FailedPrecondition,
            "'other', and this instance uses 'pool0'",
        ),
        ({"lv_layout": "raid,raid1"}, FailedPrecondition, "type raid, raid1"),
        ({"lv_device_open": "1"}, InUse, "unmount it"),
    ],
)
def test_an_unsuitable_logical_volume_is_refused_and_unchanged(row: Row, kind: type[StorageError], words: str) -> None:
    machine = Machine(data=row)
    before = {name: {**row} for name, row in machine.rows.items()}

    with pytest.raises(kind, match=words):
        over(machine).import_volume("data", stamp())
    assert machine.rows == before


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ("nothing", NotFound, "does not exist"),
        ("vg1/data", InvalidArgument, "volume group 'vg1'"),
        ("/dev/mapper/vg0-data", InvalidArgument, "volume group 'mapper'"),
        ("-f", InvalidArgument, "is not the name of a logical volume; give one such as vg0/data"),
        ("csix-a", FailedPrecondition, "driver's own form"),
    ],
)
def test_an_unsuitable_name_is_refused_with_the_reason(given: str, kind: type[StorageError], words: str) -> None:
    with pytest.raises(kind, match=words):
        over(Machine(**{"data": {}, "csix-a": {}})).import_volume(given, stamp())


def test_a_name_that_is_taken_is_refused_and_so_is_the_old_one_at_release() -> None:
    taken = Machine(**{"data": {}, "csi-old-data": {}})
    with pytest.raises(AlreadyExists, match="choose another"):
        over(taken).import_volume("data", stamp())

    machine = Machine(data={})
    made = over(machine).import_volume("data", stamp())
    machine.rows["data"] = {"lv_size": "1", "lv_layout": "linear"}
    with pytest.raises(AlreadyExists, match="rename the existing one"):
        over(machine).release_volume(made.handle)
    assert over(machine).get_volume(made.handle) == made


def test_an_open_or_not_imported_volume_is_not_released() -> None:
    machine = Machine(data={})
    made = over(machine).import_volume("data", stamp())
    machine.rows["csi-old-data"]["lv_device_open"] = "1"
    with pytest.raises(InUse):
        over(machine).release_volume(made.handle)

    machine.rows["csi-pvc-1"] = {"lv_size": "1", "lv_layout": "linear", "lv_tags": "csi.owner=d/c,csi.0=name=pvc-1"}
    with pytest.raises(FailedPrecondition, match="not imported"):
        over(machine).release_volume("node-1/vg0/pvc-1")


def test_a_dry_run_reports_the_commands_and_runs_no_change() -> None:
    machine, report = Machine(data={}), DryRunReport()
    before = {name: {**row} for name, row in machine.rows.items()}
    dry_run: Any = over(machine).dry_run(report)

    expected = dry_run.import_volume("data", stamp())
    assert machine.rows == before
    assert [step.words[1] for step in report.steps] == ["fullreport", "lvchange", "lvrename"]

    assert over(machine).import_volume("data", stamp()) == expected


@pytest.mark.devicemapper
@pytest.mark.parametrize("type_", ["linear", "thin"])
def test_an_imported_real_volume_keeps_its_data_grows_and_is_never_deleted_or_blank(
    backend: Callable[..., LvmBackend], group: Group, type_: str
) -> None:
    lvm = backend()
    kind = ("-V", "16M", "--thinpool", group.pool) if type_ == "thin" else ("-l", "4", "-Wn", "-Zn")
    group.lvm.run("lvm", "lvcreate", "-an", *kind, "-n", "data", group.name)
    wanted = Stamp(driver=lvm.setting.driver, cluster=lvm.setting.cluster, name="old-data", digest=IMPORTED)

    made = lvm.import_volume(f"{group.name}/data", wanted)
    with volume_steps.opened(lvm, made) as device:
        assert device.blank is Blank.NEVER
        volume_steps.fill(device.path)
        with device.path.open("rb"), pytest.raises(InUse):
            lvm.release_volume(made.handle)
    with volume_steps.opened(lvm, made) as device:
        assert volume_steps.read(device.path, 0, 8) == volume_steps.PATTERN[:8]
    assert volume_steps.expand(lvm, made, 8 * EXTENT) == 8 * EXTENT
    with pytest.raises(FailedPrecondition, match="csi-multi import --release"):
        lvm.delete_volume(made.handle, {})
    with pytest.raises(AlreadyExists):
        volume_steps.create(lvm, "old-data")

    assert lvm.release_volume(made.handle) == f"logical volume {group.name}/data"
    group.lvm.run("lvm", "lvremove", "--yes", f"{group.name}/data")
