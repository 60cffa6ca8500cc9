"""The program that copies what was written between a snapshot of an image and its group's."""

from __future__ import annotations

import errno
import random

import pytest
from csi_multi_rbd import group_program
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.errors import BindingsMissing, CephCommandFailed, error_class
from csi_multi_rbd.group_commands import Copied, GroupCommands

from . import contents
from .ceph import Cluster
from .test_changed_blocks import change, discard
from .volumes import MIB, SIZE, copy, create, image, snapshot, spec, write


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_target_becomes_what_the_group_has(cluster: Cluster, backend: RbdBackend, seed: int) -> None:
    """Whatever was written or discarded in between, also over the data of an ancestor, and when it is repeated."""
    chance, commands, client = random.Random(seed), GroupCommands(backend.main.client), backend.main.client
    origin = create(backend, "origin", object_size=MIB)
    write(cluster, backend, origin, b"o" * 5 * MIB, MIB)
    volume = copy(backend, "v", snapshot(backend, "s", origin))
    name = image(backend, volume)
    change(cluster, backend, volume, SIZE, chance)
    client.create_snapshot(name, "since")
    change(cluster, backend, volume, SIZE, chance)
    discard(cluster, backend, volume, 2 * MIB, MIB)
    commands.create("g")
    commands.add("g", name)
    commands.create_snapshot("g", "cut")
    wanted = contents.read(cluster, spec(backend, volume), 0, SIZE)
    change(cluster, backend, volume, SIZE, chance)
    cluster.rbd("clone", f"{spec(backend, volume)}@since", spec(backend, "target"), "--rbd-default-clone-format", "2")

    for _ in range(2):
        commands.copy_differences("g", "cut", [Copied(name, "since", image(backend, "target"))])
        assert contents.read(cluster, spec(backend, "target"), 0, SIZE) == wanted
    commands.remove("g")


def test_an_image_that_has_grown_meanwhile_is_refused(cluster: Cluster, backend: RbdBackend) -> None:
    commands, volume = GroupCommands(backend.main.client), create(backend, "v")
    name = image(backend, volume)
    backend.main.client.create_snapshot(name, "since")
    cluster.rbd("resize", spec(backend, volume), "--size", f"{2 * SIZE}B", "--no-progress")
    commands.create("g")
    commands.add("g", name)
    commands.create_snapshot("g", "cut")
    cluster.rbd("clone", f"{spec(backend, volume)}@since", spec(backend, "target"), "--rbd-default-clone-format", "2")

    with pytest.raises(CephCommandFailed, match="grown") as error:
        commands.copy_differences("g", "cut", [Copied(name, "since", image(backend, "target"))])
    assert error.value.status == errno.EAGAIN
    commands.remove("g")


def test_a_group_that_has_disappeared_is_an_error(cluster: Cluster, backend: RbdBackend) -> None:
    commands, volume, target = GroupCommands(backend.main.client), create(backend, "v"), create(backend, "t")
    with pytest.raises(CephCommandFailed, match="no snapshot of group") as error:
        commands.copy_differences("g", "cut", [Copied(image(backend, volume), "since", image(backend, target))])
    assert error.value.status == errno.ESTALE


def test_a_python_without_bindings_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rados", None)
    status = group_program.main(["copy", "job"])

    assert error_class(status, capsys.readouterr().err) is BindingsMissing
