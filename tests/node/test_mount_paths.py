"""Unusual, hostile and long paths; nothing that the driver did not create is touched."""

from __future__ import annotations

import os

import pytest

from csi_multi.contract import FailedPrecondition, InvalidArgument, SizeRange
from csi_multi.host import mounts

pytestmark = pytest.mark.root


MiB = 1024 * 1024


NAMES = [
    b"with space",
    b"new\nline",
    b"carriage\rreturn",
    b"tab\tand\x0bother\x1c",
    "emoji\U0001f40b".encode(),
    "wide\u3000space\u2028end\xa0".encode(),
    b"not\xff\xfeutf8",
    b"back\\slash\\040",
    b"hash#quote\"'",
    b" -leading and trailing ",
    b"comma,equals=colon:",
    b"long" * 60,
]


fs_types = pytest.mark.parametrize(("fs", "size"), [("ext4", 32), ("xfs", 320), ("btrfs", 256), (None, 32)])


@pytest.mark.parametrize("name", NAMES, ids=repr)
@fs_types
def test_any_path_works(world, name, fs, size):
    parent = world.directory / os.fsdecode(name)
    parent.mkdir()
    world.volume(size=size * MiB)
    staging, target = parent / "staging", parent / os.fsdecode(name)
    staging.mkdir()
    for _ in range(2):
        world.stage(staging=staging, fs=fs)
        world.publish(staging=staging, target=target, fs=fs, read_only=True)
    if fs != "ext4":  # may need a capability that the tests do not have
        size += 32
        os.truncate(world.backend.image("v1"), size * MiB)

    assert world.expand("v1", target, SizeRange()) == size * MiB
    assert world.usage("v1", target)[0].total <= size * MiB
    assert mounts.at(target) is not None
    world.unpublish(target=target)
    world.unstage(staging=staging)
    assert os.listdir(parent) == ["staging"]


def test_a_path_close_to_the_limit_of_the_system_works(world):
    deep = world.directory
    while len(str(deep)) < 3800:
        deep = deep / ("d" * 200)
    deep.mkdir(parents=True)
    world.volume()
    staging = deep / "staging"
    staging.mkdir()
    world.stage(staging=staging)
    world.publish(staging=staging, target=deep / "target")
    world.unpublish(target=deep / "target")
    world.unstage(staging=staging)

    with pytest.raises(FailedPrecondition, match="file name too long"):
        world.stage(staging=world.directory / ("x" * 300))


def test_a_linked_parent_is_followed(world):
    """Operators link /var/lib/kubelet elsewhere; the mount table has the real path."""
    (world.directory / "real").mkdir()
    (world.directory / "linked").symlink_to("real")
    staging, target = world.directory / "linked/staging", world.directory / "linked/target"
    staging.mkdir()
    world.volume()
    for _ in range(2):
        world.stage(staging=staging)
        world.publish(staging=staging, target=target)

    assert len(world.mounted()) == 2
    world.unpublish(target=target)
    world.unstage(staging=staging)
    assert os.listdir(world.directory / "real") == ["staging"]


def occupy(world, how):
    """Put something at the target that must survive."""
    target, treasure = world.target(), world.directory / "treasure"
    treasure.mkdir()
    (treasure / "file").write_text("precious")
    if how == "link":
        target.symlink_to(treasure)
    elif how in ("link to nothing in it", "link to an empty file"):
        (world.directory / "empty").mkdir()
        (world.directory / "empty file").touch()
        target.symlink_to("empty" if how == "link to nothing in it" else "empty file")
    elif how == "dangling link":
        target.symlink_to("nowhere")
    elif how == "directory":
        target.mkdir()
        (target / "file").write_text("precious")
    elif how == "file":
        target.write_text("precious")
    elif how == "pipe":
        os.mkfifo(target)


@pytest.mark.parametrize(
    "how", ["link", "link to nothing in it", "link to an empty file", "dangling link", "directory", "file", "pipe"]
)
@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
def test_what_is_already_at_the_target_is_left_alone(world, how, fs):
    occupy(world, how)
    world.volume()
    world.stage(fs=fs)
    before = world.sh("find", str(world.directory), "-printf", "%p %y %s %m %l\n")

    for call in (lambda: world.publish(fs=fs), world.unpublish):
        with pytest.raises(FailedPrecondition, match="/target"):
            call()
    assert world.sh("find", str(world.directory), "-printf", "%p %y %s %m %l\n") == before
    world.unstage()


@pytest.mark.parametrize(("fs", "make"), [("ext4", "mkdir"), (None, "touch")])
def test_an_empty_target_of_the_right_kind_is_used(world, fs, make):
    world.sh(make, str(world.target()))
    world.volume()
    world.stage(fs=fs)

    world.publish(fs=fs)
    world.unpublish()
    world.unstage()
    assert not world.target().exists()


@pytest.mark.parametrize(("fs", "make"), [(None, "mkdir"), ("ext4", "touch")])
def test_an_empty_target_of_the_wrong_kind_is_refused_and_stays(world, fs, make):
    world.sh(make, str(world.target()))
    world.volume()
    world.stage(fs=fs)

    with pytest.raises(FailedPrecondition, match="remove it"):
        world.publish(fs=fs)
    assert world.target().exists()
    world.unstage()


def test_the_parent_of_the_target_is_never_made(world):
    world.volume()
    world.stage()

    with pytest.raises(FailedPrecondition, match="the orchestrator creates it"):
        world.publish(target=world.directory / "absent/target")
    assert not (world.directory / "absent").exists()
    world.unpublish(target=world.directory / "absent/target")
    world.unstage()


def test_the_staging_directory_must_be_there(world):
    world.volume()
    (world.directory / "link").symlink_to(world.staging())
    (world.directory / "file").touch()

    for name in ("absent", "link", "file"):
        with pytest.raises(FailedPrecondition, match="staging path"):
            world.stage(staging=world.directory / name)
    with pytest.raises(InvalidArgument, match="NUL"):
        world.stage(staging=world.directory / "a\0b")
    assert world.loops() == []


def test_what_is_already_mounted_at_the_target_is_left_alone(world):
    world.volume()
    world.stage()
    world.target().mkdir()
    world.sh("mount", "-t", "tmpfs", "foreign", str(world.target()))

    for call in (world.publish, world.unpublish):
        with pytest.raises(FailedPrecondition, match=r"is occupied by a mount of foreign \(tmpfs\)"):
            call()
    assert mounts.at(world.target()).source == "foreign"
    world.sh("umount", str(world.target()))
    world.unpublish()
    world.unstage()


def test_a_stack_with_a_foreign_mount_below_is_left_alone(world):
    world.volume()
    staging = world.stage()
    world.target().mkdir()
    world.sh("mount", "-t", "tmpfs", "foreign", str(world.target()))
    world.sh("mount", "--bind", str(staging), str(world.target()))

    with pytest.raises(FailedPrecondition, match="foreign"):
        world.unpublish()
    assert world.mounted().count(str(world.target())) == 2
    world.sh("umount", str(world.target()))
    world.sh("umount", str(world.target()))
    world.unpublish()
    world.unstage()


@pytest.mark.parametrize(("fs", "read_only"), [("ext4", False), (None, False), (None, True)])
def test_a_target_is_cleaned_up_after_its_volume_is_gone(world, fs, read_only):
    world.volume()
    world.stage(fs=fs)
    target = world.publish(fs=fs, read_only=read_only)
    world.backend.image("v1").unlink()

    world.unpublish()
    assert not target.exists()
    assert len(world.loops()) == 1  # the layer went, the device is the backend's
    world.unstage()
    assert world.mounted() == []
