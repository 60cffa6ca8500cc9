"""Mounting: the result is verified in the mount table, and errors contain no mount flag."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import traceback
from dataclasses import replace

import pytest

from csi_multi.contract import (
    AlreadyExists,
    FailedPrecondition,
    InUse,
    Result,
    StorageError,
    Unavailable,
)
from csi_multi.host import mount_calls, mounts
from csi_multi.host.command import LocalHost
from csi_multi.node import mounting

SECRET = "password=hunter2"


pytestmark = pytest.mark.root


@pytest.fixture(params=["calls", "mount(8)"])
def altered(request, monkeypatch):
    """Let a mount do something else than it was told."""

    def alter(world, old, new):
        if request.param == "calls":
            mount_detached = mount_calls.mount_detached

            def call(fs_type, source, options, flags):
                flags = {*flags, "ro"} if "ro" in new else flags
                return mount_detached(fs_type, source.replace(old, new), options, flags)

            monkeypatch.setattr(mount_calls, "mount_detached", call)
            return

        def mount(*argv, stdin, **options):
            return LocalHost().run(*argv, stdin=stdin.replace(old, new), **options)

        world.host.replaced["mount"] = mount

    return alter


def altered_bind(monkeypatch, **changed):
    """Let a bind get other arguments than it was given."""
    bind = mount_calls.bind

    def other(source, target, flags=None):
        bind(changed.get("source", source), target, changed.get("flags", flags))

    monkeypatch.setattr(mount_calls, "bind", other)


@pytest.fixture
def formatted(world):
    world.volume()
    world.stage()
    world.unstage()
    return world


def test_a_stage_that_becomes_read_only_is_undone(formatted, altered):
    altered(formatted, " rw,", " ro,")

    with pytest.raises(FailedPrecondition, match="can be mounted read-only only"):
        formatted.stage()
    assert (formatted.mounted(), formatted.loops()) == ([], [])


def test_a_publication_that_becomes_writable_is_undone(formatted, monkeypatch):
    formatted.stage()
    altered_bind(monkeypatch, flags={"relatime"})

    with pytest.raises(FailedPrecondition, match="read-write, not as requested, so it was unpublished"):
        formatted.publish(read_only=True)
    assert not formatted.target().exists()
    formatted.unstage()


@pytest.mark.parametrize("way", ["calls", "mount(8)"])
@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
def test_a_mount_without_effect_is_retryable(formatted, fs, way, monkeypatch):
    if way == "mount(8)":
        formatted.host.replaced["mount"] = lambda *_, **__: Result(0, "", "")
    with monkeypatch.context() as patch:
        patch.setattr(mount_calls, "bind", lambda *_: None)
        patch.setattr(mount_calls, "attach", lambda *_: None)
        with pytest.raises(Unavailable, match="nothing is mounted at"):
            formatted.stage(fs=fs)
    formatted.host.replaced.clear()
    formatted.stage(fs=fs)
    with monkeypatch.context() as patch:
        patch.setattr(mount_calls, "bind", lambda *_: None)
        with pytest.raises(Unavailable, match="nothing is mounted at"):
            formatted.publish(fs=fs)

    assert not formatted.target().exists()
    formatted.unstage()


@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
def test_another_device_that_was_mounted_is_unmounted(formatted, fs, altered, monkeypatch):
    formatted.volume("other")
    formatted.stage("other", fs=fs)
    mine, other = formatted.attach(formatted.backend.image("v1")), str(formatted.device("other").path)
    altered(formatted, mine, other)
    node = os.open(other, os.O_PATH)
    altered_bind(monkeypatch, source=node)

    with pytest.raises(FailedPrecondition, match="is occupied by a mount of"):
        formatted.stage(fs=fs)
    os.close(node)
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


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        (f"mount: /t: fsconfig() failed: ext4: Unknown parameter '{SECRET}'.", Unavailable),
        (f"mount: /t: wrong fs type, bad option, bad superblock on {SECRET}", FailedPrecondition),
        ("mount: /t: /dev/x already mounted or mount point busy.", Unavailable),
        ("mount: /t: cannot mount /dev/loop0 read-only.", FailedPrecondition),
        ("mount: /t: can't read superblock on /dev/loop0.", FailedPrecondition),
        ("mount: /t: mount(2) system call failed: Structure needs cleaning.", FailedPrecondition),
        ("", Unavailable),
    ],
)
def test_an_error_of_mount_names_the_reason_and_no_flag(tmp_path, stderr, kind):
    class Refusing:
        def run(self, *argv, stdin=None, **_):
            assert SECRET not in " ".join(argv)
            assert SECRET in stdin
            return Result(32, "", stderr)

    with pytest.raises(kind, match=r"mounting /dev/x \(ext4\) at .* failed with status 32") as error:
        mounting.mount(Refusing(), "/dev/x", tmp_path, "ext4", f"rw,{SECRET}")
    assert SECRET not in "".join(traceback.format_exception(error.value))


@pytest.mark.root
@pytest.mark.parametrize("flag", [SECRET, f"noatime,{SECRET}", f"data={SECRET}"])
def test_a_flag_the_kernel_refuses_is_not_repeated(world, flag, caplog):
    caplog.set_level(logging.DEBUG)
    world.volume()

    with pytest.raises(StorageError, match="refuses the filesystem or one of the mount flags") as error:
        world.stage(flags=(flag,))
    assert "hunter2" not in "".join(traceback.format_exception(error.value))
    assert "hunter2" not in caplog.text + repr([record.__dict__ for record in caplog.records])
    assert "hunter2" not in repr(world.host.calls)
    assert world.loops() == []


def test_stacked_mounts_are_all_unmounted(world):
    world.volume()
    staging = world.stage()
    target = world.publish()
    for path in (target, target, staging):
        world.sh("mount", "--bind", str(staging), str(path))

    world.unpublish()
    world.unstage()
    assert not target.exists()


@pytest.mark.parametrize("where", ["target", "staging"])
def test_a_busy_path_is_in_use_and_stays_mounted(world, where):
    world.volume()
    path = world.stage()
    if where == "target":
        path = world.publish()
    call = world.unpublish if where == "target" else world.unstage
    with subprocess.Popen(["sleep", "60"], cwd=path) as process:
        with pytest.raises(InUse, match="is in use by a process"):
            call()
        assert str(path) in world.mounted()
        process.kill()
    world.unpublish()
    world.unstage()


class OldHost(LocalHost):
    """The real machine, where only mount(8) can mount."""

    def call(self, function, *words, **options):
        if words[0] == "mount":
            raise OSError(errno.ENOSYS, "Function not implemented")
        return super().call(function, *words, **options)


class WithoutMountCommand(LocalHost):
    def run(self, *argv, **options):
        assert argv[0] != "mount"
        return super().run(*argv, **options)


OPTIONS = (
    "rw,nosuid,nodev",
    "ro,nosuid,nodev,noatime,ro",
    "rw,suid,dev,noexec,nodiratime,strictatime",
    "rw,noatime,relatime,nosymfollow",
    "ro,rw,nosuid,suid",
)
OF_FILESYSTEM = {
    "ext4": ("errors=remount-ro", "errors=remount-ro,discard,commit=7,data=writeback,barrier=0"),
    "xfs": ("nouuid", "nouuid,discard,inode64,logbufs=4,logbsize=64k"),
    "btrfs": ("discard=async", "compress=zstd:3,nodiscard"),
}


@pytest.mark.parametrize("fs", list(OF_FILESYSTEM))
def test_the_calls_mount_exactly_as_mount_8_does(world, fs):
    world.volume(size=320 * 1024 * 1024)
    world.sh(f"mkfs.{fs}", "-q", str(world.backend.image("v1")))
    device, target = world.attach(world.backend.image("v1")), world.staging()
    for options in (f"{flags},{own}" for flags in OPTIONS for own in OF_FILESYSTEM[fs]):
        seen = []
        for host in (OldHost(), WithoutMountCommand()):
            mounting.mount(host, device, target, fs, options)
            entry = mounts.at(target)
            seen.append((entry.options, entry.super_options, entry.source, entry.root, entry.fs_type))
            mounting.unmount(LocalHost(), target)
        assert seen[0] == seen[1], options
    world.detach(device)


def test_a_new_mount_reaches_the_mount_namespaces_that_share_the_directory(world):
    world.volume()
    shared, slave = world.directory / "shared", world.directory / "slave"
    for directory in (shared, slave):
        directory.mkdir()
    world.sh("mount", "-t", "tmpfs", "none", str(shared))
    world.sh("mount", "--make-shared", str(shared))
    world.sh("mount", "--bind", str(shared), str(slave))
    staging = shared / "staging"
    staging.mkdir()

    world.stage(staging=staging)
    assert mounts.at(slave / "staging").fs_type == "ext4"
    world.unstage(staging=staging)
    assert mounts.at(slave / "staging") is None
    world.sh("umount", str(slave), str(shared))


def test_a_mount_that_cannot_be_attached_is_not_kept(formatted, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(mount_calls, "attach", refuse)
    formatted.stage()

    assert formatted.host.commands.count("mount") == 1
    formatted.unstage()
