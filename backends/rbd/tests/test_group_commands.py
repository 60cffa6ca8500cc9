"""The commands for groups of rbd, on a real cluster."""

from __future__ import annotations

import pytest
from csi_multi_rbd import group_commands
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.errors import CephCommandFailed, NameTaken, ObjectNotFound
from csi_multi_rbd.group_commands import Copied, GroupCommands

from csi_multi.contract import FailedPrecondition

from .volumes import create, image


def test_a_group_has_images_and_snapshots_and_is_removed_with_these(backend: RbdBackend) -> None:
    commands, volume = GroupCommands(backend.main.client), image(backend, create(backend, "v"))
    commands.create("g")
    for _ in range(2):
        commands.add("g", volume)
    commands.create_snapshot("g", "s")
    shown = commands.names(), commands.images("g"), commands.snapshots("g")
    for _ in range(2):
        commands.remove("g")

    assert shown == (["g"], [volume], ["s"])
    assert (commands.names(), commands.images("g"), commands.snapshots("g")) == ([], [], [])
    assert backend.main.client.snapshots(volume) == []


def test_what_is_taken_and_what_is_not_there_are_told_apart(backend: RbdBackend) -> None:
    commands, volume = GroupCommands(backend.main.client), image(backend, create(backend, "v"))
    commands.create("g")
    commands.create("other")
    commands.add("g", volume)
    with pytest.raises(NameTaken):
        commands.create("g")
    with pytest.raises(NameTaken):
        commands.add("other", volume)
    with pytest.raises(ObjectNotFound):
        commands.add("g", "no-such-image")
    with pytest.raises(ObjectNotFound):
        commands.add("no-such-group", volume)
    with pytest.raises(ObjectNotFound):
        commands.create_snapshot("no-such-group", "s")


def test_without_bindings_the_error_names_the_package(backend: RbdBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = GroupCommands(backend.main.client)
    monkeypatch.setattr(group_commands, "PYTHON", "/usr/bin/no-such-python3")
    with pytest.raises(FailedPrecondition, match="no-such-python3"):
        commands.copy_differences("g", "s", [Copied("a", "s", "b")])


def test_an_image_that_is_not_there_is_never_taken_for_one_that_was_copied(backend: RbdBackend) -> None:
    commands = GroupCommands(backend.main.client)
    with pytest.raises(CephCommandFailed):
        commands.copy_differences("g", "s", [Copied("no-such-image", "s", "no-such-target")])
