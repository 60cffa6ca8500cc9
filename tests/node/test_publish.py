"""Publishing, above all a second time: the table of results that CSI defines for NodePublishVolume."""

from __future__ import annotations

import pytest

from csi_multi.contract import AccessMode, AlreadyExists, FailedPrecondition, InUse
from csi_multi.host import mounts

pytestmark = pytest.mark.root


WRITERS = [mode.name for mode in AccessMode if not mode.read_only]


MANY = {mode.name for mode in AccessMode if mode.many_targets}


def outcome(call):
    try:
        call()
    except (AlreadyExists, FailedPrecondition) as error:
        return type(error)
    return "ok"


@pytest.fixture(params=["ext4", None], ids=["mount", "block"])
def fs(request):
    return request.param


@pytest.fixture
def published(world, fs):
    """Publish a volume that is staged in this mode; return its second publication's outcome."""
    world.volume()

    def second(mode, /, *, other_target=False, **different):
        capability = {"fs": fs, "mode": mode}
        world.stage(**capability)
        world.publish(**capability)
        target = world.target("other") if other_target else world.target()
        return outcome(lambda: world.publish(target=target, **{**capability, **different}))

    yield second
    for name in ("other", "target"):
        world.unpublish(target=world.target(name))
    world.unstage()


@pytest.mark.parametrize("mode", WRITERS)
class TestTheTable:
    def test_same_target_same_arguments(self, published, mode):
        assert published(mode) == "ok"

    def test_same_target_read_only_now(self, published, mode):
        assert published(mode, read_only=True) is AlreadyExists

    def test_other_target_same_arguments(self, published, mode):
        assert published(mode, other_target=True) == ("ok" if mode in MANY else FailedPrecondition)

    def test_other_target_read_only(self, published, mode):
        """One node with one writer (Nomad's mode): the mode is about writers, so others may read."""
        expected = "ok" if mode in {*MANY, "SINGLE_NODE_WRITER"} else FailedPrecondition
        assert published(mode, other_target=True, read_only=True) == expected


def test_a_writer_may_come_after_readers_but_not_after_a_writer(world, fs):
    world.volume()
    world.stage(fs=fs)
    targets = [world.target(name) for name in ("reader", "writer", "other")]

    def published(target, *, read_only):
        mode = "SINGLE_NODE_WRITER"
        return outcome(lambda: world.publish(target=target, fs=fs, mode=mode, read_only=read_only))

    assert published(targets[0], read_only=True) == "ok"
    assert published(targets[1], read_only=False) == "ok"
    assert published(targets[2], read_only=False) is FailedPrecondition
    for target in targets:
        world.unpublish(target=target)
    world.unstage()


@pytest.mark.parametrize("mode", ["SINGLE_NODE_READER_ONLY", "MULTI_NODE_READER_ONLY"])
class TestReaders:
    @pytest.fixture(autouse=True)
    def _formatted(self, world, fs):
        world.volume()
        world.stage(fs=fs)
        world.unstage()
        world.volume = lambda: None

    def test_same_target(self, published, mode):
        assert published(mode) == "ok"

    def test_same_target_with_the_flag_too(self, published, mode):
        assert published(mode, read_only=True) == "ok"

    def test_other_target(self, published, mode):
        assert published(mode, other_target=True) == ("ok" if mode in MANY else FailedPrecondition)

    def test_writing_exceeds_the_stage(self, published, mode):
        assert published(mode, mode="MULTI_NODE_MULTI_WRITER") is AlreadyExists
        assert published(mode, mode="MULTI_NODE_MULTI_WRITER", other_target=True) is FailedPrecondition


@pytest.mark.parametrize(
    "different",
    [{"fs": "xfs"}, {"fs": None}, {"flags": ("noexec",)}, {"flags": ("noatime",)}, {"flags": ("suid", "dev")}],
    ids=str,
)
def test_same_target_with_another_capability_already_exists(world, different):
    world.volume()
    world.stage()
    world.publish()

    assert outcome(lambda: world.publish(**different)) is AlreadyExists
    assert outcome(lambda: world.publish(fs="")) == "ok"
    world.unpublish()
    world.unstage()


@pytest.mark.parametrize("flags", [("nosuid", "noexec"), ("nosuid,noexec",), ("nodev", "strictatime"), ("noatime",)])
def test_flags_of_the_stage_are_those_of_the_target_too(world, flags):
    world.volume()
    staging = world.stage(flags=flags)
    target = world.publish(flags=flags)
    world.publish(flags=flags)
    world.stage(flags=flags)

    assert mounts.at(target).options == mounts.at(staging).options
    world.unpublish()
    world.publish(flags=(*flags, "nosymfollow"), read_only=True)
    assert mounts.at(target).options == mounts.at(staging).options - {"rw"} | {"ro", "nosymfollow"}
    world.unpublish()
    world.unstage()


def test_the_other_target_is_named(world):
    world.volume()
    world.stage()
    world.publish(target=world.target("first"))

    with pytest.raises(FailedPrecondition, match=r"already published at .*/first"):
        world.publish(target=world.target("second"))
    assert not world.target("second").exists()
    world.unpublish(target=world.target("first"))
    world.unstage()


def test_a_part_that_the_orchestrator_bound_is_no_publication(world):
    world.volume()
    world.stage()
    target = world.publish()
    (target / "sub").mkdir()
    part = world.target("part")
    part.mkdir()
    world.sh("mount", "--bind", str(target / "sub"), str(part))
    world.unpublish()

    world.publish()
    world.unpublish()
    with pytest.raises(InUse, match="part"):
        world.unstage()  # but the device must not go while it shows anywhere
    world.sh("umount", str(part))
    world.unstage()


def test_publish_needs_the_stage(world, fs):
    world.volume()
    with pytest.raises(FailedPrecondition, match="is not staged"):
        world.publish(fs=fs)
    world.stage(fs=fs)
    with pytest.raises(FailedPrecondition, match="is not staged"):
        world.publish(fs=fs, staging=world.staging("elsewhere"))
    with pytest.raises(FailedPrecondition, match="is staged"):
        world.publish(fs=None if fs else "ext4")

    assert not world.target().exists()
    world.unstage()


def test_publish_does_not_trust_what_is_mounted_at_the_staging_path(world, fs):
    """Somebody mounted another volume over the staging path."""
    world.volume()
    world.volume("other")
    world.stage(fs=fs)
    world.stage("other")
    world.sh("mount", "--bind", str(world.staging("other")), str(world.staging()))

    for call in (world.publish, world.stage, world.unstage):
        with pytest.raises(FailedPrecondition, match="is occupied by a mount of /dev/loop"):
            call("v1", **({} if call == world.unstage else {"fs": fs}))
    assert not world.target().exists()
    world.sh("umount", str(world.staging()))
    world.unstage()
    world.unstage("other")
