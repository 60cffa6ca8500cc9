"""Unpublish and unstage undo what is this volume's, whatever became of it, and touch nothing else."""

from __future__ import annotations

import pytest

from csi_multi.contract import AlreadyExists, Blank, FailedPrecondition, InUse, Unavailable
from csi_multi.host import mounts
from csi_multi.node import device_records
from csi_multi.node.device_records import VolumeKey

pytestmark = pytest.mark.root

MiB = 1024 * 1024
KEY = VolumeKey(driver="test", volume="test/v1")

kinds = pytest.mark.parametrize(
    ("fs", "read_only"), [("ext4", False), ("xfs", False), ("btrfs", False), (None, False), (None, True)], ids=str
)
SIZES = {"ext4": 32 * MiB, "xfs": 320 * MiB, "btrfs": 128 * MiB, None: 32 * MiB}


def undo(world, where, handle="v1"):
    """Undo the volume at its target or its staging path."""
    return world.unpublish(handle) if where == "target" else world.unstage(handle)


def path_of(world, where, handle="v1"):
    return world.target() if where == "target" else world.staging(handle)


@pytest.mark.parametrize("where", ["target", "staging"])
@pytest.mark.parametrize("exists", [True, False], ids=["not open", "deleted"])
def test_a_foreign_mount_stays_when_the_volume_is_not_open(world, where, exists):
    if exists:
        world.volume()
    path = path_of(world, where)
    path.mkdir(exist_ok=True)
    world.sh("mount", "-t", "tmpfs", "foreign", str(path))
    (path / "file").write_text("precious")

    with pytest.raises(FailedPrecondition, match=r"is occupied by a mount of foreign \(tmpfs\)"):
        undo(world, where)
    assert (path / "file").read_text() == "precious"
    world.sh("umount", str(path))
    undo(world, where)


@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
@pytest.mark.parametrize("asked", ["not open", "absent", "open"])
def test_another_volume_at_the_path_stays_and_is_named(world, fs, asked):
    world.volume("other")
    staging = world.stage("other", fs=fs)
    target = world.publish("other", fs=fs)
    if asked != "absent":
        world.volume()
    if asked == "open":
        world.stage(fs=fs)
    before = world.mounted()

    with pytest.raises(FailedPrecondition, match=r"which is volume 'test/other', not 'v1'"):
        world.unpublish(target=target)
    with pytest.raises(FailedPrecondition, match=r"which is volume 'test/other', not 'v1'"):
        world.unstage(staging=staging)
    assert world.mounted() == before
    world.unpublish("other", target)
    for handle in ("v1", "other"):
        world.unstage(handle)


@kinds
def test_a_volume_is_undone_when_it_was_deleted_while_mounted(world, fs, read_only):
    world.volume(size=SIZES[fs])
    world.stage(fs=fs)
    world.publish(fs=fs, read_only=read_only)
    world.backend.image("v1").unlink()

    world.unpublish()
    world.unstage()
    assert (world.mounted(), world.loops()) == ([], [])


@kinds
def test_a_volume_is_undone_when_the_backend_finds_its_device_no_more(world, fs, read_only, monkeypatch):
    world.volume(size=SIZES[fs])
    world.stage(fs=fs)
    world.publish(fs=fs, read_only=read_only)
    monkeypatch.setattr(world.backend, "find_device", lambda _: None)

    world.unpublish()
    world.unstage()
    assert (world.mounted(), world.loops()) == ([], [])


def test_a_backend_that_does_not_answer_does_not_keep_a_target_mounted(world, monkeypatch):
    world.volume()
    world.stage()
    world.publish()

    def down(handle):
        raise Unavailable("the storage does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(world.backend, "find_device", down)
        world.unpublish()
    assert not world.target().exists()
    world.unstage()


@pytest.mark.parametrize("fs", ["ext4", "btrfs", None], ids=str)
def test_without_a_record_the_backend_says_whose_mount_it_is(world, fs):
    """As a driver without records has left it."""
    world.volume(size=SIZES[fs])
    world.stage(fs=fs)
    world.publish(fs=fs)
    device_records.remove(KEY, world.device().number)

    world.unpublish()
    world.unstage()


def test_a_record_of_an_earlier_device_with_the_same_number_proves_nothing(world):
    world.volume()
    world.stage()
    number = world.device().number
    note = device_records.DeviceRecord(
        key=device_records.VolumeKey(driver="test", volume="test/former"),
        number=number,
        path=world.device().path,
        sequence="1",
    )
    device_records._write(note)
    world.volume("former")

    with pytest.raises(FailedPrecondition, match="is occupied by"):
        world.unstage("former", staging=world.staging())
    world.unstage()


@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
@pytest.mark.parametrize("first", ["rw", "ro"])
def test_each_of_two_staging_paths_is_undone_by_itself(world, fs, first):
    """Nomad has a staging path per namespace and access mode."""
    world.volume()
    paths = {name: world.staging(f"{name}-file-system") for name in ("rw", "ro")}
    for path in paths.values():
        world.stage(staging=path, fs=fs)
    target = world.publish(staging=paths["rw"], fs=fs)
    second = paths["ro" if first == "rw" else "rw"]

    world.unstage(staging=paths[first])
    world.unstage(staging=paths[first])
    with pytest.raises(InUse, match=r"still published at .*/target"):
        world.unstage(staging=second)
    world.publish(staging=second, fs=fs)
    assert not [path for path in world.mounted() if path.startswith(str(paths[first]))]
    assert len(world.loops()) == 1
    world.unpublish(target=target)
    world.unstage(staging=second)
    assert (world.mounted(), world.loops()) == ([], [])


@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
def test_two_staging_paths_of_a_driver_without_records_are_undone(world, fs):
    world.volume()
    paths = [world.staging(name) for name in ("rw", "ro")]
    for path in paths:
        world.stage(staging=path, fs=fs)
    device_records.remove(KEY, world.device().number)

    with pytest.raises(InUse, match="/staging-ro"):
        world.unstage(staging=paths[0])
    for path in reversed(paths):
        world.unstage(staging=path)
    assert (world.mounted(), world.loops()) == ([], [])


def test_a_staging_path_that_was_never_used_does_not_close_the_device(world):
    world.volume()
    staging = world.stage()
    world.unstage(staging=world.staging("never"))

    assert world.mounted() == [str(staging)]
    assert len(world.loops()) == 1
    world.unstage()


def test_a_second_staging_path_is_no_second_publication(world):
    world.volume()
    world.stage()
    other = world.stage(staging=world.staging("other"))
    world.publish(staging=other)

    world.unpublish()
    world.unstage()
    world.unstage(staging=other)


@pytest.fixture
def copies(world):
    """The directory of the orchestrator, with a second path at which all its mounts appear too."""
    orchestrator, copy = world.directory / "orchestrator", world.directory / "copy"
    orchestrator.mkdir()
    copy.mkdir()
    world.sh("mount", "--bind", str(orchestrator), str(orchestrator))
    world.sh("mount", "--make-shared", str(orchestrator))
    world.sh("mount", "--bind", str(orchestrator), str(copy))
    yield orchestrator, copy
    world.sh("umount", str(copy))
    world.sh("umount", str(orchestrator))


@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
def test_a_propagated_copy_of_a_mount_is_no_publication(world, copies, fs):
    orchestrator, copy = copies
    world.volume()
    (orchestrator / "staging").mkdir()
    staging = world.stage(staging=orchestrator / "staging", fs=fs)
    assert len([path for path in world.mounted() if path.startswith(str(copy / "staging"))]) == 1
    for _ in range(2):
        world.publish(staging=staging, target=orchestrator / "target", fs=fs)
    assert mounts.at(copy / "target")
    with pytest.raises(FailedPrecondition, match=r"already published at .*/orchestrator/target"):
        world.publish(staging=staging, target=orchestrator / "second", fs=fs)

    world.unpublish(target=orchestrator / "target")
    world.unstage(staging=staging)
    assert world.loops() == []


def test_a_copy_that_stays_behind_is_named_when_the_volume_is_unstaged(world):
    world.volume()
    staging = world.stage()
    (world.directory / "kept").mkdir()
    world.sh("mount", "--bind", str(staging), str(world.directory / "kept"))
    with pytest.raises(InUse, match="/kept"):
        world.unstage()
    world.sh("umount", str(world.directory / "kept"))
    world.unstage()


SHARED = {"mode": "SINGLE_NODE_MULTI_WRITER"}


@pytest.mark.parametrize(("before", "now"), [("4711", "4712"), ("", "4711"), ("4711", "")])
def test_another_group_at_the_same_target_is_refused(world, before, now):
    world.volume()
    staging = world.stage(**SHARED)
    world.publish(group=before, **SHARED)
    owner = staging.stat().st_gid

    for _ in range(2):
        with pytest.raises(AlreadyExists, match="volume_mount_group"):
            world.publish(group=now, **SHARED)
        world.publish(group=before, **SHARED)
    assert staging.stat().st_gid == owner
    world.unpublish()
    world.publish(group=now, **SHARED)
    world.unpublish()
    world.unstage()


def test_nothing_is_recorded_of_a_volume_that_is_closed(world):
    world.volume()
    world.stage()
    world.publish(read_only=True)
    number = world.device().number
    assert device_records.of_device(number).paths == {str(world.staging()), str(world.target())}
    world.unpublish()
    world.unstage()
    world.volume("used", blank=Blank.NEVER)
    with pytest.raises(FailedPrecondition):
        world.stage("used")

    assert not (device_records.NOTES / number).exists()


def test_a_record_stays_when_its_device_number_went_to_another_volume_meanwhile(world, monkeypatch):
    world.volume()
    world.stage()
    device, close = world.device(), world.backend.close_device
    other = VolumeKey(driver="test", volume="test/other")

    def close_and_reuse(handle):
        close(handle)
        device_records.write(other, device.path, device.number)

    with monkeypatch.context() as patch:
        patch.setattr(world.backend, "close_device", close_and_reuse)
        world.unstage()
    assert device_records.of_device(device.number).key == other
    device_records.remove(other, device.number)


def test_nothing_is_recorded_of_a_volume_whose_unstage_died_after_it_had_closed_the_device(world, monkeypatch):
    world.volume()
    world.stage()
    record = device_records.of_device(world.device().number)

    def die(*_):
        raise world.Killed

    with monkeypatch.context() as patch:
        patch.setattr(device_records, "remove", die)
        with pytest.raises(world.Killed):
            world.unstage()
    world.unstage()
    assert record not in device_records._all().values()


def test_a_mount_inside_of_the_target_is_named(world):
    world.volume()
    world.stage()
    inside = world.publish() / "inside"
    inside.mkdir()
    world.sh("mount", "-t", "tmpfs", "foreign", str(inside))

    with pytest.raises(InUse, match=r"while .*/target/inside is mounted"):
        world.unpublish()
    world.sh("umount", str(inside))
    world.unpublish()
    world.unstage()


def test_a_mount_that_hides_the_target_is_named(world):
    world.volume()
    world.stage()
    parent = world.directory / "pod"
    parent.mkdir()
    world.publish(target=parent / "target")
    world.sh("mount", "-t", "tmpfs", "foreign", str(parent))

    with pytest.raises(InUse, match=r"while .*/pod is mounted"):
        world.unpublish(target=parent / "target")
    world.sh("umount", str(parent))
    world.unpublish(target=parent / "target")
    world.unstage()
