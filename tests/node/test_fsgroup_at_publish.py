"""volume_mount_group in NodePublishVolume: kubelet leaves the fsGroup of every pod on the node to the driver."""

from __future__ import annotations

import itertools
import os

import pytest

from csi_multi.contract import FailedPrecondition, InvalidArgument
from csi_multi.node import fsgroup

pytestmark = pytest.mark.root

SHARED = {"mode": "SINGLE_NODE_MULTI_WRITER"}  # what ReadWriteOnce is to kubelet
FIRST, SECOND = 4711, 4712


def fill(root):
    (root / "deep/er").mkdir(parents=True, mode=0o700)
    for name in ("file", "deep/er/file"):
        (root / name).write_text("bytes")
        (root / name).chmod(0o600)
    (root / "deep/link").symlink_to("/nowhere")


def owners(root):
    return {path.lstat().st_gid for path in (root, *root.rglob("*"))}


def start(world, gid, name, **different):
    """Do as kubelet does for a pod on a node where the volume is staged."""
    return world.publish(target=world.target(name), group=str(gid or ""), **{**SHARED, **different})


@pytest.fixture
def staging(world):
    """A staged volume that belongs to the first group, and is published to its pod."""
    world.volume()
    staging = world.stage(group=str(FIRST), **SHARED)
    fill(staging)
    staging.chmod(0o770)  # as if the content had been there before any group was
    start(world, FIRST, "first")
    yield staging
    for target in sorted(world.directory.iterdir()):
        if target.name in ("first", "second", "third"):
            world.unpublish(target=target)
    world.unstage()


def writes(monkeypatch):
    """Record what is given; the root is the only entry with a path of its own."""
    seen = []
    for name in ("chown", "chmod"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda path, *rest, _real=real, **more: (seen.append(path), _real(path, *rest, **more))
        )
    return seen


def test_a_second_pod_with_another_group_gets_the_whole_tree(world, staging):
    target = start(world, SECOND, "second")

    assert owners(staging) == owners(target) == {SECOND}
    assert target.joinpath("deep/er/file").stat().st_mode & 0o060 == 0o060


def test_a_successor_before_unstage_gets_the_whole_tree(world, staging):
    world.unpublish(target=world.target("first"))
    start(world, SECOND, "second")

    assert owners(staging) == {SECOND}


def test_the_content_has_the_group_before_the_pod_can_see_it(world, staging, monkeypatch):
    seen = []
    change = fsgroup.apply
    monkeypatch.setattr(fsgroup, "apply", lambda *what: (seen.append(world.target("second").exists()), change(*what)))
    start(world, SECOND, "second")

    assert seen == [False]


def test_a_pod_with_the_same_group_walks_over_nothing(world, staging, monkeypatch):
    monkeypatch.setattr(fsgroup, "_change_tree", None)
    seen = writes(monkeypatch)
    start(world, FIRST, "second")

    assert seen == []


def test_a_pod_without_a_group_changes_nothing_at_all(world, staging):
    start(world, None, "second")

    assert owners(staging) == {FIRST}


@pytest.mark.parametrize("different", [{"read_only": True}, {"flags": ("ro",)}], ids=["flag", "mount flag"])
def test_a_read_only_publication_changes_nothing_at_all(world, staging, different):
    start(world, SECOND, "second", **different)

    assert owners(staging) == {FIRST}


def test_a_publication_of_a_volume_that_is_staged_read_only_changes_nothing(world):
    world.volume()
    world.stage()
    world.unstage()
    reader = {"mode": "SINGLE_NODE_READER_ONLY", "group": str(FIRST)}
    world.stage(**reader)

    assert world.publish(**reader).stat().st_gid == 0
    world.unpublish()
    world.unstage()


def test_a_raw_block_volume_has_no_group(world, monkeypatch):
    world.volume()
    monkeypatch.setattr(fsgroup, "apply", None)
    world.stage(fs=None)
    world.publish(fs=None)
    world.unpublish()
    world.unstage()


def test_a_publication_that_is_refused_changes_nothing(world, staging):
    with pytest.raises(FailedPrecondition, match="already published"):
        start(world, SECOND, "second", mode="SINGLE_NODE_SINGLE_WRITER")

    assert owners(staging) == {FIRST}


@pytest.mark.parametrize("read_only", [False, True])
def test_what_is_no_group_id_is_refused(world, staging, read_only):
    with pytest.raises(InvalidArgument, match="is not a group id"):
        start(world, "users", "second", read_only=read_only)

    assert not world.target("second").exists()


def test_when_kubelet_starts_anew_the_last_group_stays(world, staging):
    """It stages and publishes again for every pod, in any order: pods that run must not lose their files then."""
    start(world, SECOND, "second")
    world.stage(group=str(FIRST), **SHARED)
    start(world, SECOND, "second")
    start(world, FIRST, "first")

    assert owners(staging) == {SECOND}


class Dying:
    """Lets the driver die at a change of owner or mode."""

    def __init__(self, world, monkeypatch):
        self.left = None
        for name in ("chown", "chmod"):
            monkeypatch.setattr(os, name, self.counted(world, getattr(os, name)))

    def counted(self, world, real):
        def change(*what, **more):
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise world.Killed
            return real(*what, **more)

        return change

    def at(self, world, steps, call):
        """Say whether it died."""
        self.left = steps
        try:
            call()
        except world.Killed:
            return True
        finally:
            self.left = None
        return False


@pytest.mark.parametrize("next_gid", [FIRST, SECOND, 4713], ids=["the former", "the same", "a third"])
def test_whoever_comes_after_a_death_at_any_point_gets_the_whole_tree(world, staging, monkeypatch, next_gid):
    dying = Dying(world, monkeypatch)
    for steps in itertools.count():
        died = dying.at(world, steps, lambda: start(world, SECOND, "second"))
        start(world, next_gid, "third")

        assert owners(staging) == {next_gid}
        assert all(path.lstat().st_mode & 0o060 == 0o060 for path in staging.rglob("*"))
        if not died:
            break
        world.unpublish(target=world.target("third"))
        start(world, FIRST, "third")  # as before
        world.unpublish(target=world.target("third"))
    assert steps >= 8


def test_a_retry_writes_only_what_was_not_done(world, staging, monkeypatch):
    """A tree that takes longer than the driver lives is done at last."""
    dying = Dying(world, monkeypatch)
    assert dying.at(world, 4, lambda: start(world, SECOND, "second"))
    done = {path for path in staging.rglob("*") if path.lstat().st_gid == SECOND}
    changed = {path: path.lstat().st_ctime_ns for path in done}
    start(world, SECOND, "second")

    assert len(done) >= 3
    assert {path: path.lstat().st_ctime_ns for path in done} == changed
    assert owners(staging) == {SECOND}


def test_set_user_id_programs_stay_so(world, staging):
    (staging / "program").write_text("bytes")
    (staging / "program").chmod(0o4770)
    start(world, SECOND, "second")

    assert (staging / "program").stat().st_mode & 0o7777 == 0o4770


def test_a_root_that_cannot_be_changed_is_refused_and_leaves_nothing_published(world, staging):
    world.sh("chattr", "+i", str(staging))
    before = world.mounted()

    with pytest.raises(FailedPrecondition, match=r"is immutable or append-only.*chattr -i -a"):
        start(world, SECOND, "second")
    assert world.mounted() == before
    assert not world.target("second").exists()
    start(world, None, "third")
    world.unpublish(target=world.target("third"))
    world.sh("chattr", "-i", str(staging))
    assert start(world, SECOND, "second").stat().st_gid == SECOND
