"""Mount flags: what they mean, what is refused, and that nobody ever reads one."""

from __future__ import annotations

import logging
import traceback

import pytest

from csi_multi.contract import CommandFailed, FailedPrecondition, InvalidArgument, Result, StorageError, Unavailable
from csi_multi.host.command import LocalHost
from csi_multi.node import mount_flags, mounting

SECRET = "password=hunter2"


@pytest.mark.parametrize(
    "flag",
    [
        *("bind", "rbind", "move", "remount", "loop", "loop=/dev/loop7", "offset=512", "shared", "rprivate", "a,bind"),
        *("line\nend", "nul\0", 'open"quote', "X-mount.subdir=etc", "helper=nfs", "sizelimit=1"),
    ],
)
def test_a_flag_that_is_no_flag_is_refused_by_position(flag):
    with pytest.raises(InvalidArgument, match="mount flag 2 ") as refusal:
        mount_flags.validate(["noatime", flag])
    assert "line\n" not in str(refusal.value)
    assert "=512" not in str(refusal.value)


@pytest.mark.parametrize("flag", ["noatime", "a,b", 'context="a:b:c0,c1"', "data=journal", "-odd", "subvol=/@", ""])
def test_other_flags_pass(flag):
    mount_flags.validate([flag])


@pytest.mark.parametrize(
    ("words", "read_only", "expected"),
    [
        ((), False, {"relatime"}),
        (("noatime",), False, {"noatime"}),
        (("strictatime",), False, set()),
        (("noexec,nosuid", "suid"), False, {"relatime", "noexec"}),
        (("ro",), False, {"relatime", "ro"}),
        (("ro", "rw"), False, {"relatime"}),
        (("rw",), True, {"relatime", "ro"}),
        (("user",), False, {"relatime", "noexec", "nosuid", "nodev"}),
        (("data=journal", "discard"), False, {"relatime"}),
    ],
)
def test_the_mount_table_shows_the_effect_of_flags(words, read_only, expected):
    assert mount_flags.apply(mount_flags.DEFAULT_VISIBLE, words, read_only=read_only) == expected


def test_a_bind_repeats_what_it_keeps():
    assert mount_flags.bind_options(frozenset({"ro", "nosuid", "relatime"})) == "bind,nosuid,relatime,ro"
    assert mount_flags.bind_options(frozenset({"ro"})) == "bind,ro,strictatime"


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
            raise CommandFailed(argv, Result(32, "", stderr))

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
    assert "hunter2" not in repr(world.door.calls)
    assert world.loops() == []


@pytest.mark.root
def test_flags_reach_the_kernel(world):
    world.volume()
    staging = world.stage(flags=("data=journal", "nosuid,noexec"))

    shown = LocalHost().run("findmnt", "-no", "OPTIONS", str(staging)).stdout
    assert {"data=journal", "nosuid", "noexec"} <= set(shown.strip().split(","))
    world.unstage()


@pytest.mark.root
def test_the_flag_ro_stages_read_only(world):
    world.volume()
    world.stage()
    world.unstage()
    staging = world.stage(flags=("ro",))

    with pytest.raises(OSError, match="Read-only"):
        (staging / "file").touch()
    assert world.device().read_only
    world.unstage()
