"""Mount flags: their effect, and which ones are refused."""

from __future__ import annotations

import pytest

from csi_multi.contract import InvalidArgument
from csi_multi.host.command import LocalHost
from csi_multi.node import mount_flags


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
        (("noatime,relatime",), False, {"noatime"}),
        (("noatime", "nostrictatime"), False, {"noatime"}),
        (("noatime", "atime"), False, {"relatime"}),
        (("noexec,nosuid", "suid"), False, {"relatime", "noexec"}),
        (("ro",), False, {"relatime", "ro"}),
        (("ro", "rw"), False, {"relatime"}),
        (("rw",), True, {"relatime", "ro"}),
        (("user",), False, {"relatime", "noexec", "nosuid", "nodev"}),
        (("data=journal", "discard"), False, {"relatime"}),
    ],
)
def test_the_mount_table_shows_the_effect_of_flags(words, read_only, expected):
    assert mount_flags.apply(mount_flags.KERNEL_VISIBLE, words, read_only=read_only) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"relatime", "nosuid", "nodev"}),
        (("suid",), {"relatime", "nodev"}),
        (("dev", "noatime"), {"noatime", "nosuid"}),
        (("defaults",), {"relatime", "nosuid", "nodev"}),
    ],
)
def test_the_class_undoes_what_the_driver_adds(words, expected):
    assert mount_flags.apply(mount_flags.DEFAULT_VISIBLE, words, read_only=False) == expected


def test_a_bind_repeats_what_it_keeps():
    assert mount_flags.of_bind(frozenset({"ro", "nosuid", "relatime"})) == {"ro", "nosuid", "relatime"}
    assert mount_flags.of_bind(frozenset({"ro"})) == {"ro", "strictatime"}


@pytest.mark.root
def test_flags_reach_the_kernel(world):
    world.volume()
    staging = world.stage(flags=("data=journal", "nosuid,noexec"))

    shown = LocalHost().run("findmnt", "-no", "OPTIONS", str(staging)).stdout
    assert {"data=journal", "nosuid", "noexec"} <= set(shown.strip().split(","))
    world.unstage()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("rw", ({"relatime"}, ())),
        ("rw,errors=remount-ro,nosuid,nodev", ({"relatime", "nosuid", "nodev"}, ("errors=remount-ro",))),
        ("ro,nouuid,noatime,ro", ({"noatime", "ro"}, ("nouuid",))),
        ("ro,rw", ({"relatime"}, ())),
        ("nosuid,suid,strictatime", ({"strictatime"}, ())),
        ("noatime,relatime", ({"noatime"}, ())),
    ],
)
def test_flags_that_the_kernel_gets_from_the_driver(options, expected):
    assert mount_flags.for_kernel([options]) == expected


@pytest.mark.parametrize(
    "option",
    [
        *("", "user", "users", "owner", "group", "defaults", "x-systemd.automount", "X-mount.mode=0700", "_netdev"),
        *(
            "nofail",
            "noauto",
            "loop",
            "offset=4096",
            "context=system_u:object_r:x",
            'context="a,b"',
            "verity.hashdevice=x",
        ),
        *("sync", "lazytime", "silent", "norelatime", "data=hunter2", "commit=7x", "password=hunter2", "commit=\u0661"),
    ],
)
def test_an_option_that_mount_8_may_act_upon_is_left_to_it(option):
    assert mount_flags.for_kernel(["rw", option]) is None
