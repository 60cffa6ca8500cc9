"""What the exit status of a command says about data: every status, and nothing is final that is no answer."""

from __future__ import annotations

import errno
import os
import random
import signal

import pytest

from csi_multi.contract import Blank, CommandFailed, FailedPrecondition, Result, Unavailable
from csi_multi.host.command import LocalHost
from csi_multi.node import exit_status, mounting
from csi_multi.node.exit_status import CommandOutcome
from csi_multi.node.filesystem import BY_NAME

MiB = 1024 * 1024

# From the manual pages: blkid(8), e2fsck(8), xfs_repair(8), btrfs-check(8), mount(8).
EXPECTED = {
    "blkid": {0: CommandOutcome.DONE, 2: CommandOutcome.NOTHING, 8: CommandOutcome.AMBIGUOUS},
    "e2fsck": {
        **dict.fromkeys((0, 1, 2, 3), CommandOutcome.DONE),
        **dict.fromkeys((4, 5, 6, 7), CommandOutcome.DAMAGED),
    },
    "xfs_repair": {0: CommandOutcome.DONE, 1: CommandOutcome.DAMAGED, 2: CommandOutcome.DAMAGED},
    "btrfs check": {0: CommandOutcome.DONE, 1: CommandOutcome.DAMAGED},
    "mkfs.ext4": {0: CommandOutcome.DONE},
    "mkfs.xfs": {0: CommandOutcome.DONE},
    "mkfs.btrfs": {0: CommandOutcome.DONE},
    "resize2fs": {0: CommandOutcome.DONE, 1: CommandOutcome.REFUSED},
    "mount": {0: CommandOutcome.DONE, 32: CommandOutcome.REFUSED},
    " ".join(exit_status.REPLAY_MOUNT): {0: CommandOutcome.DONE, 32: CommandOutcome.REFUSED},
}


class Exiting:
    """A host on which every command exits with one status."""

    def __init__(self, status):
        self.status = status

    def run(self, *argv, ok=(0,), **_):
        result = Result(self.status, "", "")
        if self.status not in ok:
            raise CommandFailed(argv, result)
        return result


@pytest.mark.parametrize("command", EXPECTED)
def test_every_status_is_an_answer_or_is_not_final(command):
    for status in range(-64, 256):
        if status in EXPECTED[command]:
            outcome, _ = exit_status.run(Exiting(status), *command.split(), "/dev/x")
            assert outcome is EXPECTED[command][status]
        else:
            with pytest.raises(Unavailable, match=f"status {status}|signal {-status}"):
                exit_status.run(Exiting(status), *command.split(), "/dev/x")


def test_every_command_of_a_filesystem_is_in_the_table():
    for fs_type in BY_NAME.values():
        mkfs = (f"mkfs.{fs_type.name}",)
        for argv in (mkfs, fs_type.check_command, fs_type.repair_command, *fs_type.grow_unmounted_commands):
            if argv:
                exit_status.run(Exiting(0), *argv)


def killed(number):
    """Run a program that ends by this signal, as the kernel ends one when no memory is left."""

    def run(*argv, stdin=None, ok=(0,), timeout=60.0):
        result = LocalHost().run("sh", "-c", f"kill -{int(number)} $$", ok=(-number,), timeout=timeout)
        return Exiting(result.status).run(*argv, ok=ok)

    return run


def used_volume(world):
    world.volume()
    world.stage()
    (world.staging() / "file").write_text("bytes")
    world.unstage()


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
@pytest.mark.parametrize("program", ["blkid", "e2fsck", "mount"])
def test_a_command_that_was_killed_is_not_final(world, program, number):
    used_volume(world)
    before = world.digest()
    world.host.replaced[program] = killed(number)

    with pytest.raises(Unavailable) as refusal:
        world.stage()
    assert "by hand" not in str(refusal.value)
    assert "signature" not in str(refusal.value)
    if program != "mount":
        assert f"{program} was ended by signal {int(number)}" in str(refusal.value)
        assert world.digest() == before
    world.host.replaced.clear()
    assert (world.stage() / "file").read_text() == "bytes"
    world.unstage()


@pytest.mark.root
@pytest.mark.parametrize("fs", ["ext4", "xfs", "btrfs"])
def test_a_check_that_was_killed_does_not_make_a_new_filesystem(world, fs):
    """The driver died after mkfs; whether mkfs had ended is unknown until the check has ended."""
    world.volume(size=320 * MiB)
    world.sh(f"mkfs.{fs}", "-q", str(world.backend.image("v1")))
    world.backend.note("v1", Blank.INTERRUPTED)
    program = BY_NAME[fs].check_command[0]
    before = world.digest()
    world.host.replaced[program] = killed(signal.SIGKILL)

    with pytest.raises(Unavailable, match=f"{program} was ended by signal 9"):
        world.stage(fs=fs)
    assert world.digest() == before
    world.host.replaced.clear()
    world.unstage()


@pytest.mark.root
def test_mkfs_that_was_killed_is_not_final(world):
    world.volume()
    world.host.replaced["mkfs.ext4"] = killed(signal.SIGKILL)
    with pytest.raises(Unavailable, match=r"mkfs\.ext4 was ended by signal 9"):
        world.stage()
    world.host.replaced.clear()

    world.stage()
    world.unstage()


@pytest.mark.root
@pytest.mark.parametrize("status", sorted({*range(1, 11), 16, 32, 64, 126, 127, 128, 137} - {2, 8}))
def test_any_status_of_blkid_that_says_nothing_is_not_final(world, status):
    world.volume()
    before = world.digest()
    world.host.replaced["blkid"] = lambda *argv, **more: Exiting(status).run(*argv, **more)

    with pytest.raises(Unavailable, match=f"blkid exited with status {status}"):
        world.stage()
    assert world.digest() == before
    world.unstage()


@pytest.mark.root
@pytest.mark.parametrize("used", [True, False])
def test_a_device_that_blkid_cannot_open_is_not_taken_for_empty(world, used):
    """It exits with 2 then, too, as for a device without any signature; only the text of the error differs."""
    used_volume(world) if used else world.volume()
    before = world.digest()
    script = 'echo "blkid: error: $0: Operation not permitted" >&2; exit 2'  # as where a cgroup forbids the device
    world.host.replaced["blkid"] = lambda *argv, **more: LocalHost().run("sh", "-c", script, argv[-1], **more)

    with pytest.raises(Unavailable, match=r"exited with status 2: .*Operation not permitted"):
        world.stage()
    assert world.digest() == before
    world.host.replaced.clear()
    world.stage()
    world.unstage()


@pytest.mark.root
def test_signatures_of_two_kinds_are_final(world):
    world.volume()
    world.host.replaced["blkid"] = lambda *argv, **more: Exiting(8).run(*argv, **more)

    with pytest.raises(FailedPrecondition, match="remove the signature that does not belong there"):
        world.stage()


@pytest.mark.root
def test_damage_found_before_a_growth_is_final_too(world, monkeypatch):
    used_volume(world)
    os.truncate(world.backend.image("v1"), 64 * MiB)
    monkeypatch.setattr("csi_multi.node.grow.held", lambda _: False)
    real = LocalHost()

    def e2fsck(*argv, **more):
        return Exiting(4).run(*argv, **more) if "-f" in argv else real.run(*argv, **more)

    world.host.replaced["e2fsck"] = e2fsck
    with pytest.raises(FailedPrecondition, match="needs repair by hand: e2fsck exited with status 4"):
        world.stage()


@pytest.mark.parametrize("status", [-9, 1, 2, 4, 8, 16, 64])
def test_a_mount_that_did_not_get_to_the_kernel_is_not_final(tmp_path, status):
    class Failing:
        def call(self, *_, **__):
            raise OSError(errno.EPERM, "Operation not permitted")

        def run(self, *argv, ok=(0,), **_):
            assert status not in ok
            raise CommandFailed(argv, Result(status, "", "wrong fs type, bad option, bad superblock"))

    with pytest.raises(Unavailable, match=f"failed with status {status}"):
        mounting.mount(Failing(), "/dev/x", tmp_path, "ext4", "rw")


@pytest.mark.root
def test_damage_that_e2fsck_leaves_is_final(world):
    used_volume(world)
    with world.backend.image("v1").open("r+b") as file:
        file.seek(2048)
        file.write(random.Random(2).randbytes(64 * 1024))

    with pytest.raises(FailedPrecondition, match="needs repair by hand"):
        world.stage()
