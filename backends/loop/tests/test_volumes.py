"""Volumes as files: names, sizes, conflicts, stamps, foreign neighbours. No root needed."""

import dataclasses
import json
import re

import pytest
from csi_multi_loop.guard import held

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PageRequest,
    SizeRange,
    Unavailable,
    VolumeRequest,
    WrongNode,
)

MIB = 2**20


@pytest.mark.parametrize(
    "name", ["pvc-1", "/", "../../etc", "a/b", "😀", "a\tb", "x" * 128, "Ünïcode", "x-abc", ".new-pvc", "ab\n"]
)
def test_any_name_makes_one_volume_that_is_found_by_it(backend, ask, name):
    made = backend.create_volume(ask.volume(name))

    assert backend.find_volume(name) == backend.get_volume(made.handle) == made
    assert re.fullmatch(r"node-1/[a-z0-9][-a-z0-9]{0,42}", made.handle)


def test_a_volume_keeps_its_stamp_and_its_exact_size(backend, ask, image):
    request = ask.volume("v", 5 * MIB + 4096, limit=5 * MIB + 4096)
    made = backend.create_volume(request)

    assert (made.stamp, made.size) == (request.stamp, 5 * MIB + 4096)
    assert image(backend, made.handle).stat().st_size == made.size
    assert image(backend, made.handle).stat().st_blocks == 0


def test_a_size_is_rounded_up_and_has_a_default(make, ask):
    backend = make(default_size=3 * MIB)

    assert backend.create_volume(ask.volume("a", 2 * MIB + 1)).size == 2 * MIB + 4096
    assert backend.create_volume(ask.volume("b", 0)).size == 3 * MIB
    assert backend.create_volume(ask.volume("c", 0, limit=2 * MIB)).size == 2 * MIB
    assert backend.create_volume(ask.volume("d", 1)).size == MIB


@pytest.mark.parametrize(("size", "limit"), [(9 * MIB, 0), (0, 4096), (2 * MIB + 1, 2 * MIB + 2)])
def test_a_size_that_cannot_be_made_is_out_of_range(make, ask, size, limit, leftovers):
    backend = make(max_size=8 * MIB)
    with pytest.raises(OutOfRange):
        backend.create_volume(ask.volume("v", size, limit=limit))

    assert backend.list_volumes(PageRequest()).items == ()
    assert leftovers(backend) == []


def test_a_taken_name_is_refused_and_stays_as_it_was(backend, ask, leftovers):
    made = backend.create_volume(ask.volume("v", digest="first"))
    for request in (ask.volume("v", digest="first"), ask.volume("v", digest="second")):
        with pytest.raises(AlreadyExists):
            backend.create_volume(request)

    assert backend.find_volume("v") == made
    assert leftovers(backend) == []


def test_a_retry_after_a_limit_was_lowered_still_meets_its_volume(make, ask):
    made = make().create_volume(ask.volume("v", 32 * MIB))
    stricter = make(max_size=16 * MIB)
    with pytest.raises(AlreadyExists):
        stricter.create_volume(ask.volume("v", 32 * MIB))

    assert stricter.find_volume("v") == made
    assert stricter.expand_volume(ask.expand(made.handle, 32 * MIB)).size == 32 * MIB


def test_a_name_being_made_is_busy_and_afterwards_free(backend, ask, tmp_path):
    backend.check()
    new = tmp_path / "pool/volumes/.new-v"
    new.mkdir()
    with held(new), pytest.raises(Busy):
        backend.create_volume(ask.volume("v"))

    assert backend.create_volume(ask.volume("v"))


def test_a_held_volume_is_busy(backend, ask, image):
    handle = backend.create_volume(ask.volume("v")).handle
    with held(image(backend, handle).parent):
        for attempt in (
            lambda: backend.delete_volume(handle, {}),
            lambda: backend.expand_volume(ask.expand(handle, 20 * MIB)),
            lambda: backend.create_snapshot(ask.snapshot("s", handle)),
            lambda: backend.clone_volume(ask.copy("c", "volume", handle)),
            lambda: backend.open_device(ask.open(handle)),
        ):
            with pytest.raises(Busy):
                attempt()


def test_a_deleted_volume_is_gone_for_good(backend, ask, leftovers):
    handle = backend.create_volume(ask.volume("v")).handle
    backend.delete_volume(handle, {})

    for attempt in (lambda: backend.delete_volume(handle, {}), lambda: backend.get_volume(handle)):
        with pytest.raises(NotFound):
            attempt()
    with pytest.raises(NotFound):
        backend.find_volume("v")
    assert leftovers(backend) == []


@pytest.mark.parametrize("handle", ["", "v", "node-1/", "/v", "node-1/../v", "node-1/.new-v", "node-1/a/b", "node-1/A"])
def test_a_handle_of_another_shape_is_unknown(backend, handle):
    for attempt in (
        lambda: backend.get_volume(handle),
        lambda: backend.delete_volume(handle, {}),
        lambda: backend.get_snapshot(handle),
        lambda: backend.delete_snapshot(handle, {}),
        lambda: backend.node_of(handle),
        lambda: backend.find_device(handle),
        lambda: backend.volume_health(handle, {}),
    ):
        with pytest.raises(NotFound):
            attempt()


def test_a_volume_of_another_node_is_never_taken_for_gone(backend, ask):
    handle = "node-2/v"
    for attempt in (
        lambda: backend.get_volume(handle),
        lambda: backend.delete_volume(handle, {}),
        lambda: backend.delete_snapshot(handle, {}),
        lambda: backend.open_device(ask.open(handle)),
        lambda: backend.find_device(handle),
        lambda: backend.close_device(handle),
        lambda: backend.create_snapshot(ask.snapshot("s", handle)),
        lambda: backend.clone_volume(ask.copy("c", "volume", handle)),
        lambda: backend.restore_volume(ask.copy("c", "snapshot", handle)),
        lambda: backend.expand_volume(ask.expand(handle, MIB)),
    ):
        with pytest.raises(WrongNode, match=r"node-2.*node-1"):
            attempt()
    assert backend.node_of(handle) == "node-2"


def test_a_volume_of_another_driver_is_neither_listed_nor_deleted(backend, make, setting, ask):
    other = make(setting=dataclasses.replace(setting, driver="other.csi.test"))
    handle = other.create_volume(ask.volume("v")).handle  # stamped for this driver: foreign to `other`
    with pytest.raises(FailedPrecondition, match=r"belongs to driver 'multi\.csi\.test'"):
        other.delete_volume(handle, {})
    with pytest.raises(FailedPrecondition):
        other.find_volume("v")

    assert other.list_volumes(PageRequest()).items == ()
    assert other.list_volume_health(PageRequest(), {}).items == ()
    assert backend.get_volume(handle).handle == handle


def test_foreign_files_are_neither_listed_nor_touched(backend, ask, tmp_path):
    backend.check()
    volumes = tmp_path / "pool/volumes"
    (volumes / "lost+found").mkdir()
    (volumes / "notes").write_text("mine")
    (volumes / "project").mkdir()
    (volumes / ".new-Foreign").mkdir()
    handle = backend.create_volume(ask.volume("v")).handle
    backend.resume()

    assert [volume.handle for volume in backend.list_volumes(PageRequest()).items] == [handle]
    assert backend.list_volume_health(PageRequest(), {}).items == ()
    assert sorted(path.name for path in volumes.iterdir()) == [".new-Foreign", "lost+found", "notes", "project", "v"]
    for name in ("notes", "project"):
        with pytest.raises(AlreadyExists):
            backend.create_volume(ask.volume(name))
        with pytest.raises(FailedPrecondition):
            backend.delete_volume(f"node-1/{name}", {})


def test_a_volume_with_a_foreign_file_in_it_is_not_removed(backend, ask, image):
    handle = backend.create_volume(ask.volume("v")).handle
    (image(backend, handle).parent / "precious").write_text("mine")
    with pytest.raises(FailedPrecondition, match="precious"):
        backend.delete_volume(handle, {})

    assert backend.get_volume(handle)


@pytest.mark.parametrize("text", ["", "{", '{"size": "x"}', "[]", '{"version": 2}'])
def test_broken_metadata_is_left_out_of_listings_and_named_everywhere_else(backend, ask, image, text, caplog):
    handle = backend.create_volume(ask.volume("v")).handle
    (image(backend, handle).parent / "volume.json").write_text(text)

    assert backend.list_volumes(PageRequest()).items == ()
    assert "left out" in caplog.text
    for attempt in (lambda: backend.get_volume(handle), lambda: backend.delete_volume(handle, {})):
        with pytest.raises(FailedPrecondition, match=r"volume\.json"):
            attempt()
    assert [entry.reason for entry in backend.volume_health(handle, {})] == ["MetadataBroken"]
    assert [found.handle for found in backend.list_volume_health(PageRequest(), {}).items] == [handle]


def test_metadata_of_a_newer_driver_is_not_guessed_at(backend, ask, image):
    handle = backend.create_volume(ask.volume("v")).handle
    file = image(backend, handle).parent / "volume.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 2}))

    with pytest.raises(FailedPrecondition, match="upgrade the driver"):
        backend.get_volume(handle)


def test_the_format_state_moves_forward_only(backend, ask, image):
    handle = backend.create_volume(ask.volume("v")).handle
    file = image(backend, handle).parent / "volume.json"
    states = [json.loads(file.read_text())["format"]]
    for step in (backend.formatting, backend.formatting, backend.formatted, backend.formatted):
        step(handle)
        states.append(json.loads(file.read_text())["format"])

    assert states == ["fresh", "formatting", "formatting", "used", "used"]
    with pytest.raises(FailedPrecondition, match="must not be formatted"):
        backend.formatting(handle)
    assert json.loads(file.read_text())["format"] == "used"


def test_expanding_grows_never_shrinks_and_keeps_the_limit(make, ask, image):
    backend = make(max_size=64 * MIB)
    handle = backend.create_volume(ask.volume("v", 16 * MIB)).handle

    assert backend.expand_volume(ask.expand(handle, 20 * MIB)).size == 20 * MIB
    assert backend.expand_volume(ask.expand(handle, 18 * MIB)).size == 20 * MIB
    assert backend.get_volume(handle).size == image(backend, handle).stat().st_size == 20 * MIB
    for size, limit in ((65 * MIB, 0), (0, 18 * MIB)):
        with pytest.raises(OutOfRange):
            backend.expand_volume(ask.expand(handle, size, limit))
    with pytest.raises(NotFound):
        backend.expand_volume(ask.expand("node-1/nothing", MIB))


def test_a_growth_that_was_interrupted_is_finished_by_the_retry(backend, ask, image):
    handle = backend.create_volume(ask.volume("v", 16 * MIB)).handle
    with image(backend, handle).open("r+b") as file:
        file.truncate(20 * MIB)  # the image grew, its metadata did not

    assert backend.expand_volume(ask.expand(handle, 20 * MIB)).size == 20 * MIB
    assert backend.get_volume(handle).size == 20 * MIB


def test_a_lost_or_shortened_image_is_reported_and_never_repaired(backend, ask, image):
    short, lost = (backend.create_volume(ask.volume(name)).handle for name in ("short", "lost"))
    backend.create_volume(ask.volume("fine"))
    with image(backend, short).open("r+b") as file:
        file.truncate(MIB)
    image(backend, lost).unlink()

    for handle, reason in ((short, "BackingFileTruncated"), (lost, "BackingFileMissing")):
        for attempt in (
            lambda handle=handle: backend.open_device(ask.open(handle)),
            lambda handle=handle: backend.expand_volume(ask.expand(handle, 20 * MIB)),
            lambda handle=handle: backend.create_snapshot(ask.snapshot("s", handle)),
            lambda handle=handle: backend.clone_volume(ask.copy("c", "volume", handle)),
        ):
            with pytest.raises(FailedPrecondition, match="image"):
                attempt()
        assert [(entry.status.name, entry.reason) for entry in backend.volume_health(handle, {})] == [
            ("DATA_LOSS", reason)
        ]
        assert [entry.reason for entry in backend.node_volume_health(handle)] == [reason]
    assert [found.handle for found in backend.list_volume_health(PageRequest(), {}).items] == [lost, short]
    assert image(backend, short).stat().st_size == MIB
    for handle in (short, lost):
        backend.delete_volume(handle, {})


def test_a_request_without_parameters_or_with_a_source_of_the_wrong_kind(backend, ask):
    assert backend.create_volume(VolumeRequest(stamp=ask.stamp("v"), size=SizeRange(required=MIB)))
    with pytest.raises(InvalidArgument):
        backend.restore_volume(ask.copy("c", "volume", "node-1/v"))


def test_a_missing_mount_is_noticed_by_every_operation(make, ask, tmp_path):
    (tmp_path / "pool").mkdir()
    backend = make(require_mount=True)
    for attempt in (
        backend.check,
        backend.resume,
        lambda: backend.create_volume(ask.volume("v")),
        lambda: backend.delete_volume("node-1/v", {}),
        lambda: backend.get_volume("node-1/v"),
        lambda: backend.list_volumes(PageRequest()),
    ):
        with pytest.raises(Unavailable, match="not a mount point"):
            attempt()
    assert list((tmp_path / "pool").iterdir()) == []
    assert [entry.reason for entry in backend.node_storage_health({})] == ["DirectoryUnreachable"]


def test_a_constructor_touches_nothing(make, tmp_path):
    make(tmp_path / "nowhere")

    assert not (tmp_path / "nowhere").exists()
