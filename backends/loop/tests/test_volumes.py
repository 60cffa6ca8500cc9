"""Volumes: names, sizes, conflicts, clones, growth and format state. No root needed."""

import errno
import json
import os
import re
import threading

import pytest
from csi_multi_loop.client import Client

from csi_multi.contract import (
    AlreadyExists,
    ExpandRequest,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PageRequest,
    SizeRange,
    Unavailable,
    VolumeRequest,
)

from .conftest import digest

MIB = 2**20


@pytest.mark.parametrize(
    "name", ["pvc-1", "/", "../../etc", "a/b", "😀", "a\tb", "x" * 128, "Ünïcode", "x-abc", ".new-pvc", "ab\n"]
)
def test_any_name_makes_one_volume_that_is_found_by_it(backend, requests, name):
    made = backend.create_volume(requests.volume(name))

    assert backend.find_volume(name) == backend.get_volume(made.handle) == made
    assert re.fullmatch(r"node-1/[a-z0-9][-a-z0-9]{0,42}", made.handle)


def test_a_volume_keeps_its_stamp_and_its_exact_size(backend, requests, image):
    request = requests.volume("v", 5 * MIB + 4096, limit=5 * MIB + 4096)
    made = backend.create_volume(request)

    assert (made.stamp, made.size) == (request.stamp, 5 * MIB + 4096)
    assert image(backend, made.handle).stat().st_size == made.size
    assert image(backend, made.handle).stat().st_blocks == 0


def test_a_size_is_rounded_up_and_has_a_default(connect, requests):
    backend = connect(default_size=3 * MIB)

    assert backend.create_volume(requests.volume("a", 2 * MIB + 1)).size == 2 * MIB + 4096
    assert backend.create_volume(requests.volume("b", 0)).size == 3 * MIB
    assert backend.create_volume(requests.volume("c", 0, limit=2 * MIB)).size == 2 * MIB
    assert backend.create_volume(requests.volume("d", 1)).size == MIB


@pytest.mark.parametrize(("size", "limit"), [(9 * MIB, 0), (0, 4096), (2 * MIB + 1, 2 * MIB + 2)])
def test_a_size_that_cannot_be_made_is_out_of_range(connect, requests, size, limit, leftovers):
    backend = connect(max_size=8 * MIB)
    with pytest.raises(OutOfRange):
        backend.create_volume(requests.volume("v", size, limit=limit))

    assert backend.list_volumes(PageRequest()).items == ()
    assert leftovers(backend) == []


def test_a_taken_name_is_refused_and_stays_as_it_was(backend, requests, leftovers):
    made = backend.create_volume(requests.volume("v", digest="first"))
    for request in (requests.volume("v", digest="first"), requests.volume("v", digest="second")):
        with pytest.raises(AlreadyExists):
            backend.create_volume(request)

    assert backend.find_volume("v") == made
    assert leftovers(backend) == []


def test_a_retry_after_a_limit_was_lowered_still_meets_its_volume(connect, requests):
    made = connect().create_volume(requests.volume("v", 32 * MIB))
    stricter = connect(max_size=16 * MIB)
    with pytest.raises(AlreadyExists):
        stricter.create_volume(requests.volume("v", 32 * MIB))

    assert stricter.find_volume("v") == made
    assert stricter.expand_volume(requests.expand(made.handle, 32 * MIB)).size == 32 * MIB


def test_a_deleted_volume_is_gone_for_good(backend, requests, leftovers):
    handle = backend.create_volume(requests.volume("v")).handle
    backend.delete_volume(handle, {})

    for attempt in (lambda: backend.delete_volume(handle, {}), lambda: backend.get_volume(handle)):
        with pytest.raises(NotFound):
            attempt()
    with pytest.raises(NotFound):
        backend.find_volume("v")
    assert leftovers(backend) == []


def test_the_format_state_moves_forward_only(backend, requests, image):
    handle = backend.create_volume(requests.volume("v")).handle
    file = image(backend, handle).parent / "volume.json"
    states = [json.loads(file.read_text())["format"]]
    for step in (backend.formatting, backend.formatting, backend.formatted, backend.formatted):
        step(handle)
        states.append(json.loads(file.read_text())["format"])

    assert states == ["fresh", "formatting", "formatting", "used", "used"]
    with pytest.raises(FailedPrecondition, match="must not be formatted"):
        backend.formatting(handle)
    assert json.loads(file.read_text())["format"] == "used"


def test_expanding_grows_never_shrinks_and_keeps_the_limit(connect, requests, image):
    backend = connect(max_size=64 * MIB)
    handle = backend.create_volume(requests.volume("v", 16 * MIB)).handle

    assert backend.expand_volume(requests.expand(handle, 20 * MIB)).size == 20 * MIB
    assert backend.expand_volume(requests.expand(handle, 18 * MIB)).size == 20 * MIB
    assert backend.get_volume(handle).size == image(backend, handle).stat().st_size == 20 * MIB
    for size, limit in ((65 * MIB, 0), (0, 18 * MIB)):
        with pytest.raises(OutOfRange):
            backend.expand_volume(requests.expand(handle, size, limit))
    with pytest.raises(NotFound):
        backend.expand_volume(requests.expand("node-1/nothing", MIB))


def test_an_interrupted_growth_is_finished_by_the_retry(backend, requests, image):
    handle = backend.create_volume(requests.volume("v", 16 * MIB)).handle
    with image(backend, handle).open("r+b") as file:
        file.truncate(20 * MIB)  # the image grew, its metadata did not

    assert backend.expand_volume(requests.expand(handle, 20 * MIB)).size == 20 * MIB
    assert backend.get_volume(handle).size == 20 * MIB


def test_a_request_without_parameters_or_with_a_source_of_the_wrong_kind(backend, requests):
    assert backend.create_volume(VolumeRequest(stamp=requests.stamp("v"), size=SizeRange(required=MIB)))
    with pytest.raises(InvalidArgument):
        backend.restore_volume(requests.copy("c", "volume", "node-1/v"))


def test_a_copy_may_hold_data_from_the_start(backend, requests, filled):
    handle = backend.clone_volume(requests.copy("c", "volume", filled)).handle

    with pytest.raises(FailedPrecondition, match="must not be formatted"):
        backend.formatting(handle)


def test_a_copy_is_never_smaller_than_its_source(backend, requests, filled, leftovers):
    snapshot = backend.create_snapshot(requests.snapshot("s", filled)).handle
    for size, limit in ((8 * MIB, 0), (0, 8 * MIB), (8 * MIB, 8 * MIB)):
        with pytest.raises(OutOfRange):
            backend.restore_volume(requests.copy("r", "snapshot", snapshot, size, limit=limit))
        with pytest.raises(OutOfRange):
            backend.clone_volume(requests.copy("r", "volume", filled, size, limit=limit))

    assert leftovers(backend) == []


def test_a_copy_keeps_its_sources_sector_size(backend, requests, filled, image):
    parameters = backend.Parameters(sector_size=4096)
    source = backend.create_volume(requests.volume("v", parameters=parameters)).handle
    for name, asked in (("c1", None), ("c2", 4096)):
        parameters = backend.Parameters(sector_size=asked)
        handle = backend.clone_volume(requests.copy(name, "volume", source, parameters=parameters)).handle

        assert json.loads((image(backend, handle).parent / "volume.json").read_text())["sector_size"] == 4096
    with pytest.raises(InvalidArgument, match="sectorSize"):
        backend.clone_volume(requests.copy("d", "volume", source, parameters=backend.Parameters(sector_size=512)))


def test_many_copies_of_one_source_are_made_at_once(backend, requests, filled, image):
    errors = []

    def clone(number):
        try:
            backend.clone_volume(requests.copy(f"c{number}", "volume", filled))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=clone, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert {digest(image(backend, f"node-1/c{number}")) for number in range(8)} == {digest(image(backend, filled))}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_label_that_finds_no_space_is_unavailable_and_written_later(backend, requests, monkeypatch, code):
    """ResourceExhausted is final for an expansion, and the image has grown already."""
    made = backend.create_volume(requests.volume("full"))

    def full(_self, file, _label):
        raise OSError(code, os.strerror(code), str(file))

    with monkeypatch.context() as patch:
        patch.setattr(Client, "replace_label", full)
        for call in (
            lambda: backend.formatting(made.handle),
            lambda: backend.expand_volume(ExpandRequest(handle=made.handle, size=SizeRange(required=2 * made.size))),
        ):
            with pytest.raises(Unavailable, match=r"cannot be changed: .*; delete volumes or snapshots"):
                call()

    done = backend.expand_volume(ExpandRequest(handle=made.handle, size=SizeRange(required=2 * made.size)))
    backend.formatting(made.handle)
    assert done.size == backend.get_volume(made.handle).size == 2 * made.size
