"""volume_mount_group: a volume's content belongs to the group, and nothing outside it does."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from csi_multi.contract import FailedPrecondition, InvalidArgument, Unavailable
from csi_multi.node import fsgroup

pytestmark = pytest.mark.root


def fill(root, outside):
    (root / "deep/er").mkdir(parents=True, mode=0o700)
    for name in ("deep/er/file", "program"):
        (root / name).write_text("bytes")
        (root / name).chmod(0o4755 if name == "program" else 0o600)
    os.mkfifo(root / "pipe", 0o600)
    (root / "link").symlink_to(outside)
    (root / "deep/dir-link").symlink_to(outside.parent)


def owners(root):
    return {path.lstat().st_gid for path in (root, *root.rglob("*"))}


def meanwhile(monkeypatch, wanted):
    """Let something happen once, right after the group of the entry with this name was changed."""

    def register(change):
        original, waiting = fsgroup._change_entry, [wanted]

        def watched(name, *rest):
            original(name, *rest)
            if name in waiting:
                waiting.remove(name)
                change()

        monkeypatch.setattr(fsgroup, "_change_entry", watched)

    return register


@pytest.fixture
def outside(world):
    directory = world.directory / "outside"
    directory.mkdir(mode=0o700)
    (directory / "file").write_text("bytes")
    (directory / "file").chmod(0o600)
    yield directory / "file"
    for path in (directory, directory / "file"):
        assert (path.stat().st_gid, path.stat().st_mode & 0o077) == (0, 0)


def test_everything_gets_the_group_and_links_are_not_followed(world, outside):
    world.volume()
    staging = world.stage()
    fill(staging, outside)
    world.stage(group="4711")

    assert owners(staging) == {4711}
    for directory in (staging, staging / "deep", staging / "deep/er"):
        assert stat.S_IMODE(directory.stat().st_mode) & 0o2070 == 0o2070
    assert stat.S_IMODE((staging / "deep/er/file").stat().st_mode) == 0o660
    assert stat.S_IMODE((staging / "program").stat().st_mode) == 0o4775
    world.unstage()


def test_new_files_belong_to_the_group(world):
    world.volume()
    staging = world.stage(group="4711")
    target = world.publish(group="4711")
    (target / "new").write_text("bytes")

    assert (staging / "new").stat().st_gid == 4711
    world.unpublish()
    world.unstage()


def test_another_group_gets_the_staged_volume(world, outside):
    world.volume()
    staging = world.stage(group="4711")
    fill(staging, outside)
    world.stage(group="4712")

    assert owners(staging) == {4712}
    world.unstage()


def test_a_tree_that_has_the_group_is_not_walked_again(world):
    world.volume()
    staging = world.stage(group="4711")
    (staging / "file").write_text("bytes")
    os.chown(staging / "file", 0, 0)
    world.stage(group="4711")

    assert (staging / "file").stat().st_gid == 0
    world.unstage()


def test_the_root_comes_last(world, outside, monkeypatch):
    """An interrupted walk must be seen by the next one."""
    world.volume()
    staging = world.stage()
    fill(staging, outside)
    given = []
    monkeypatch.setattr(fsgroup, "_change_entry", lambda name, *_: given.append((name, staging.stat().st_gid)))
    world.stage(group="4711")

    assert len(given) >= 6
    assert {gid for _, gid in given} == {0}
    assert staging.stat().st_gid == 4711
    world.unstage()


def test_a_read_only_stage_changes_nothing(world):
    world.volume()
    world.stage()
    world.unstage()
    staging = world.stage(mode="SINGLE_NODE_READER_ONLY", group="4711")

    assert staging.stat().st_gid == 0
    world.unstage()


@pytest.mark.parametrize("name", ["users", "-1", "4294967295", "1.5", "1 2", "\u0664", "99999999999999999999999"])
def test_what_is_no_group_id_is_refused(world, name):
    world.volume()

    with pytest.raises(InvalidArgument, match="is not a group id"):
        world.stage(group=name)
    assert world.host.calls == []


def test_a_very_deep_tree_gets_the_group_too(world):
    world.volume(size=64 * 1024 * 1024)
    staging = world.stage()
    here = os.open(staging, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    world.stage(group="4711")

    assert os.fstat(here).st_gid == 4711
    os.close(here)
    world.unstage()


@pytest.mark.parametrize("mounted", [False, True], ids=["alone", "with a mount inside"])
def test_the_effort_grows_with_the_number_of_directories_and_not_with_their_depth(world, monkeypatch, mounted):
    world.volume(size=256 * 1024 * 1024)
    staging = world.stage(context={"fs.numberOfInodes": "32768"})
    depth = 20_000
    here = os.open(staging, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    if mounted:
        (staging / "mounted").mkdir()
        world.sh("mount", "-t", "tmpfs", "tmpfs", str(staging / "mounted"))
    opened, real = [0], os.open

    def counted(*what, **more):
        opened[0] += 1
        assert opened[0] < 5 * depth  # at once: with the square of it, the end is minutes away
        return real(*what, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", counted)
        world.stage(group="4711")

    assert os.fstat(here).st_gid == 4711
    assert opened[0] > depth
    os.close(here)
    if mounted:
        world.sh("umount", str(staging / "mounted"))
    world.unstage()


def test_a_directory_that_is_moved_while_the_walk_is_in_it_ends_no_walk(world, outside, monkeypatch):
    world.volume()
    staging = world.stage()
    for name in ("a", "b"):
        (staging / name / "deep/er").mkdir(parents=True)
        (staging / name / "deep/er/file").write_text("bytes")
    (staging / "elsewhere").mkdir()

    @meanwhile(monkeypatch, "file")
    def move():
        name = next(one for one in ("a", "b") if (staging / one / "deep/er").stat().st_gid == 4711)
        (staging / name / "deep").rename(staging / "elsewhere/deep")

    world.stage(group="4711")

    assert owners(staging) == {4711}
    world.unstage()


def test_a_directory_that_becomes_a_link_meanwhile_is_not_followed(world, outside, monkeypatch):
    world.volume()
    staging = world.stage()
    (staging / "trap").mkdir()

    @meanwhile(monkeypatch, "trap")
    def swap():
        (staging / "trap").rmdir()
        (staging / "trap").symlink_to(outside.parent)

    world.stage(group="4711")

    assert owners(staging) == {4711}
    world.unstage()


def test_a_directory_that_is_removed_meanwhile_does_no_harm(world, monkeypatch):
    world.volume()
    staging = world.stage()
    (staging / "gone").mkdir()
    (staging / "kept").mkdir()
    meanwhile(monkeypatch, "gone")((staging / "gone").rmdir)
    world.stage(group="4711")

    assert owners(staging) == {4711}
    world.unstage()


def test_a_directory_that_is_moved_meanwhile_gets_the_group_too(world, monkeypatch):
    world.volume()
    staging = world.stage()
    (staging / "old").mkdir()
    (staging / "old/file").write_text("bytes")
    meanwhile(monkeypatch, "old")(lambda: (staging / "old").rename(staging / "new"))
    world.stage(group="4711")

    assert (staging / "new/file").stat().st_gid == 4711
    world.unstage()


def test_a_workload_that_never_stops_renaming_does_not_block_the_next_one(world, monkeypatch):
    world.volume()
    staging = world.stage()
    (staging / "busy").mkdir()
    change = fsgroup._change_entry

    def churn(name, *rest):
        change(name, *rest)
        if name.startswith("busy"):
            (staging / name).rename(staging / f"{name}-")

    monkeypatch.setattr(fsgroup, "_change_entry", churn)
    world.stage(group="4711")

    assert staging.stat().st_gid == 4711
    world.unstage()


def test_what_is_immutable_stays_and_the_rest_gets_the_group(world, caplog):
    world.volume()
    staging = world.stage()
    for name in ("immutable", "plain"):
        (staging / name).write_text("bytes")
    world.sh("chattr", "+i", str(staging / "immutable"))
    world.stage(group="4711")

    assert (staging / "plain").stat().st_gid == staging.stat().st_gid == 4711
    assert (staging / "immutable").stat().st_gid == 0
    assert f"{staging}/immutable keeps its group" in caplog.text
    world.unstage()


@pytest.mark.parametrize("flag", ["i", "a"], ids=["immutable", "append-only"])
@pytest.mark.parametrize("staged", [True, False], ids=["staged before", "not staged"])
def test_a_root_that_cannot_be_changed_is_refused_with_the_remedy_and_nothing_is_left_staged(world, flag, staged):
    """The error is final: after it the orchestrator takes the volume for not staged, and never unstages it."""
    world.volume()
    staging = world.stage()
    (staging / "file").write_text("bytes")
    world.sh("chattr", f"+{flag}", str(staging))
    if not staged:
        world.unstage()

    for _ in range(2):
        with pytest.raises(FailedPrecondition, match=rf"{staging} is immutable or append-only.*chattr -i -a"):
            world.stage(group="4711")
        assert (world.mounted(), world.loops()) == ([], [])
    world.stage()
    assert owners(staging) == {0}
    world.sh("chattr", f"-{flag}", str(staging))
    world.stage(group="4711")
    assert owners(staging) == {4711}
    world.unstage()


def test_other_filesystems_mounted_inside_are_left_alone(world):
    world.volume()
    staging = world.stage()
    inside = staging / "deep/mounted"
    inside.mkdir(parents=True)
    world.sh("mount", "-t", "tmpfs", "tmpfs", str(inside))
    (inside / "file").write_text("bytes")
    world.stage(group="4711")

    assert owners(inside) == {0}
    assert (staging / "deep").stat().st_gid == 4711
    world.sh("umount", str(inside))
    world.unstage()


def test_an_error_of_the_filesystem_is_reported_and_retryable(world, monkeypatch):
    world.volume()
    staging = world.stage()
    (staging / "file").write_text("bytes")

    def full(*_):
        raise OSError(errno.EDQUOT, "")

    with monkeypatch.context() as patch:
        patch.setattr(fsgroup, "_change_opened", full)
        with pytest.raises(Unavailable, match="disk quota exceeded; the next try repeats it"):
            world.stage(group="4711")
    world.stage(group="4711")

    assert owners(staging) == {4711}
    world.unstage()
