"""What mount did is looked at, not believed."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from csi_multi.contract import AlreadyExists, FailedPrecondition, Result, Unavailable
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root


def altered(world, old, new):
    """Let mount do something else than it was told."""

    def mount(*argv, stdin, **options):
        return LocalHost().run(*argv, stdin=stdin.replace(old, new), **options)

    world.door.replaced["mount"] = mount


@pytest.fixture
def formatted(world):
    world.volume()
    world.stage()
    world.unstage()
    return world


def test_a_stage_that_turned_out_read_only_is_undone(formatted):
    altered(formatted, " rw ", " ro ")

    with pytest.raises(FailedPrecondition, match="can be mounted read-only only"):
        formatted.stage()
    assert (formatted.mounted(), formatted.loops()) == ([], [])


def test_a_publication_that_turned_out_writable_is_undone(formatted):
    formatted.stage()
    altered(formatted, ",ro", "")

    with pytest.raises(FailedPrecondition, match="is published at .* read-write, not as requested, so it was unpublished"):
        formatted.publish(read_only=True)
    assert not formatted.target().exists()
    formatted.unstage()


@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
def test_a_mount_that_did_nothing_is_asked_for_again(formatted, fs):
    formatted.door.replaced["mount"] = lambda *_, **__: Result(0, "", "")
    with pytest.raises(Unavailable, match="nothing is mounted at"):
        formatted.stage(fs=fs)
    formatted.door.replaced.clear()
    formatted.stage(fs=fs)
    formatted.door.replaced["mount"] = lambda *_, **__: Result(0, "", "")
    with pytest.raises(Unavailable, match="nothing is mounted at"):
        formatted.publish(fs=fs)

    assert not formatted.target().exists()
    formatted.unstage()


@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
def test_another_device_that_was_mounted_is_unmounted(formatted, fs):
    formatted.volume("other")
    formatted.stage("other", fs=fs)
    mine = formatted.attach(formatted.backend.image("v1"))
    altered(formatted, mine, str(formatted.device("other").path))

    with pytest.raises(FailedPrecondition, match="is occupied by a mount of"):
        formatted.stage(fs=fs)
    assert not any(path.startswith(str(formatted.staging("v1"))) for path in formatted.mounted())
    formatted.unstage("other")


def test_a_reader_of_a_device_that_can_only_be_opened_to_write_cannot_write(formatted):
    """Not every storage system can attach read-only; and no mount flag undoes the access mode."""
    opening = formatted.backend.open_device
    formatted.backend.open_device = lambda request: opening(replace(request, read_only=False))
    staging = formatted.stage(mode="SINGLE_NODE_READER_ONLY", flags=("rw",))

    assert os.statvfs(staging).f_flag & os.ST_RDONLY
    formatted.unstage()
    for _ in range(2):
        formatted.stage(mode="SINGLE_NODE_READER_ONLY", fs=None)
    with pytest.raises(AlreadyExists, match="read-only"):
        formatted.stage(fs=None)
    with pytest.raises(FailedPrecondition, match="is staged read-only"):
        formatted.publish(fs=None)
    target = formatted.publish(mode="SINGLE_NODE_READER_ONLY", fs=None)
    with pytest.raises(OSError, match="Operation not permitted"), target.open("r+b", 0) as node:
        node.write(b"other")
    formatted.unpublish()
    formatted.unstage()
