"""The parts of an instance belong together, and no command runs while they are assembled."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from csi_multi_lvm.config import Config
from csi_multi_lvm.operation import InstanceParts, Operation, instance_of

from csi_multi.contract import Setting


class NoCommands:
    """A host that must not run anything."""

    def run(self, *argv: str, **_: Any) -> NoReturn:
        raise AssertionError(f"{argv} was run")


@pytest.fixture
def instance() -> InstanceParts:
    setting = Setting(instance="fast", driver="d", cluster="c", node="node-1", host=NoCommands())
    return instance_of(Config(volume_group="vg0"), setting)


def test_volumes_and_snapshots_have_the_same_owner_and_different_names(instance: InstanceParts) -> None:
    assert instance.volumes.owner == instance.snapshots.owner == "csi.owner=d/c"
    assert (instance.volumes.name("a"), instance.snapshots.name("a")) == ("csi-a", "csis-a")


def test_handles_contain_node_and_group(instance: InstanceParts) -> None:
    assert instance.volumes.leaf("node-1/vg0/a") == instance.snapshots.leaf("node-1/vg0/a") == "a"


def test_operations_share_the_parts(instance: InstanceParts) -> None:
    first, second = Operation(instance), Operation(instance)
    assert first._reports is second._reports is instance.reports
