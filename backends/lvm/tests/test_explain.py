"""`csi-multi explain` reports the commands that a creation runs, and runs none that changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import Config, Parameters
from csi_multi_lvm.explain import PURPOSES, assumed_report

from csi_multi.commands.explain import storageclass
from csi_multi.commands.explain.explainer import ExplainOptions, explain
from csi_multi.contract import (
    AccessMode,
    Capability,
    DryRunReport,
    Mount,
    Result,
    Setting,
    SizeRange,
    Source,
    SourceKind,
    Stamp,
    Unpredictable,
    VolumeRequest,
)

GIB = 2**30
LOOKS = ("fullreport", "lvs")


class Machine:
    """A node whose lvm reports a group with a pool, free space and a snapshot, and that records its commands."""

    def __init__(self, config: Config) -> None:
        self.ran: list[tuple[str, ...]] = []
        self._group = assumed_report(config)
        self._snapshot = {
            "lv_name": "csis-snap-1",
            "lv_size": str(GIB),
            "lv_layout": "thin,sparse",
            "pool_lv": config.thin_pool,
            "lv_tags": f"csi.owner=multi.csi.test/c,csi.0=name=snap-1&digest=d,csi.size={GIB}",
            "vg_uuid": "u",
        }

    def run(self, *argv: str, **_: Any) -> Result:
        self.ran.append(argv)
        if "fullreport" in argv:
            return Result(0, self._group, "")
        rows = [self._snapshot] if "csis-snap-1" in " ".join(argv) else []
        return Result(0, msgspec.json.encode({"report": [{"lv": rows}]}).decode(), "")

    def verbs(self) -> set[str]:
        return {argv[argv.index("lvm") + 1] for argv in self.ran}


def backend(machine: Machine, config: Config) -> LvmBackend:
    return LvmBackend(
        config, Setting(instance="fast", driver="multi.csi.test", cluster="c", node="node-1", host=machine)
    )


def request(source: Source | None = None, size: int = 10 * GIB, **parameters: Any) -> VolumeRequest:
    return VolumeRequest(
        stamp=Stamp(driver="multi.csi.test", cluster="c", name="pvc-1", digest="d", source=source),
        size=SizeRange(required=size),
        capabilities=(Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount(fs_type="ext4")),),
        parameters=Parameters(**parameters),
    )


def config() -> Config:
    return Config(volume_group="vg0", thin_pool="pool0", udev="no")


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "linear"},
        {"type": "linear", "wipe": "zero"},
        {"type": "striped", "stripes": 3, "stripe_size": 65536},
        {"type": "raid1", "mirrors": 2},
        {"type": "raid6"},
        {"type": "raid10", "integrity": True},
    ],
)
def test_the_reported_commands_are_those_that_a_creation_runs(parameters: dict[str, Any]) -> None:
    real, looked_at, report = Machine(config()), Machine(config()), DryRunReport()

    made = backend(real, config()).create_volume(request(**parameters))
    explained = backend(looked_at, config()).dry_run(report).create_volume(request(**parameters))

    assert [step.words for step in report.steps] == real.ran
    assert [step.changes for step in report.steps] == [argv[1] not in LOOKS for argv in real.ran]
    assert explained == made
    assert looked_at.verbs() <= {*LOOKS}


@pytest.mark.parametrize("parameters", [{}, {"type": "raid6"}, {"type": "linear"}])
def test_an_offline_dry_run_reports_the_commands_for_a_group_with_default_extents(
    parameters: dict[str, Any],
) -> None:
    real, laptop, report = Machine(config()), Machine(config()), DryRunReport(offline=True)

    backend(real, config()).create_volume(request(**parameters))
    backend(laptop, config()).dry_run(report).create_volume(request(**parameters))

    assert [step.words for step in report.steps] == real.ran
    assert laptop.ran == []
    assert "extents of 4194304 bytes" in report.assumed[0]


def test_the_reported_commands_are_those_that_a_restore_of_the_same_size_runs() -> None:
    source = Source(kind=SourceKind.SNAPSHOT, handle="node-1/vg0/snap-1")
    real, looked_at, report = Machine(config()), Machine(config()), DryRunReport()

    backend(real, config()).restore_volume(request(source, size=0))
    backend(looked_at, config()).dry_run(report).restore_volume(request(source, size=0))

    assert [step.words for step in report.steps] == real.ran
    assert looked_at.verbs() == {*LOOKS}


def test_a_larger_restore_is_reported_up_to_the_step_that_depends_on_the_storage() -> None:
    source = Source(kind=SourceKind.SNAPSHOT, handle="node-1/vg0/snap-1")
    looked_at, report = Machine(config()), DryRunReport()

    with pytest.raises(Unpredictable, match="lvextend"):
        backend(looked_at, config()).dry_run(report).restore_volume(request(source, size=3 * GIB))

    assert [step.words[1] for step in report.steps if step.changes] == ["lvcreate"]
    assert looked_at.verbs() <= {*LOOKS}


def test_an_unknown_command_is_not_run() -> None:
    machine = Machine(config())
    host = backend(machine, config()).dry_run(DryRunReport()).setting.host

    for argv in (("lvm", "vgremove", "vg0"), ("dmsetup", "remove", "x"), ("lvm",), ("sh", "-c", "lvm lvs")):
        with pytest.raises(Unpredictable):
            host.run(*argv)
    assert machine.ran == []


def test_only_reports_count_as_reading() -> None:
    assert {verb for verb, known in PURPOSES.items() if known.read_only} == {*LOOKS}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    configuration, manifest = tmp_path / "config.yaml", tmp_path / "class.yaml"
    configuration.write_text(
        "driver: {name: multi.csi.test, node: node-1}\n"
        "backends: {fast: {kind: lvm, volume_group: vg0, thin_pool: pool0}}\n"
    )
    manifest.write_text(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: striped}\nprovisioner: multi.csi.test\n"
        "volumeBindingMode: WaitForFirstConsumer\nparameters: {backend: fast, type: striped}\n"
    )
    return configuration, manifest


def test_the_size_rounded_up_to_whole_stripes_is_reported(files: tuple[Path, Path]) -> None:
    (one,), _ = storageclass.read_storage_classes(files[1])

    explained = explain(files[0], one, ExplainOptions(size=GIB + 1, offline=True))

    assert explained.bytes == GIB + 8 * 2**20
    assert "8388607 bytes more" in explained.size
    assert any("258 extents of 4194304 bytes" in command.why for command in explained.commands)


def test_another_nodes_group_is_not_read(files: tuple[Path, Path]) -> None:
    (one,), _ = storageclass.read_storage_classes(files[1])

    explained = explain(files[0], one, ExplainOptions(size=GIB, node="node-2"))

    assert "node-2" in explained.storage_not_read
    assert explained.volume_handle.startswith("fast/node-2/vg0/")
