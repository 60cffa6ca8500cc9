"""What is not created takes no space of the capacity, whenever it was looked at. No root needed."""

import os
from pathlib import Path

import pytest
from csi_multi_loop.capacity import GRANULARITY
from csi_multi_loop.directory import Directory

from csi_multi.contract import CapacityRequest, ResourceExhausted

MIB = 2**20


def available(backend):
    return backend.capacity(CapacityRequest()).available


@pytest.fixture(params=["shown", "hidden"])
def blocks(request, disk):
    """An entry takes what its directory and its label show, or also blocks for more inodes, as on xfs."""
    disk.hidden = 4 * GRANULARITY if request.param == "hidden" else 0
    return disk


@pytest.mark.parametrize(
    "create",
    [
        lambda backend, requests: backend.create_volume(requests.volume("w", 60 * MIB)),
        lambda backend, requests: backend.clone_volume(requests.copy("w", "volume", "node-1/v")),
        lambda backend, requests: backend.create_snapshot(requests.snapshot("w", "node-1/v")),
    ],
    ids=["create", "clone", "snapshot"],
)
def test_a_creation_that_is_refused_takes_nothing(backend, requests, image, blocks, create):
    handle = backend.create_volume(requests.volume("v", 60 * MIB)).handle
    with image(backend, handle).open("r+b") as file:
        file.write(b"x" * 45 * MIB)
        os.fsync(file.fileno())
    blocks.free -= 45 * MIB
    before = available(backend)
    with pytest.raises(ResourceExhausted):
        create(backend, requests)

    assert available(backend) == before


def test_a_look_while_a_creation_is_refused_counts_its_entry_no_longer_than_it_is_there(
    backend, connect, requests, blocks, crash
):
    other, seen = connect(), []
    before = available(backend)
    with (
        crash.before("os.rmdir", lambda: seen.extend((available(backend), available(other)))),
        pytest.raises(ResourceExhausted),
    ):
        backend.create_volume(requests.volume("w", 200 * MIB))

    assert before - 5 * GRANULARITY <= seen[0] == seen[1] <= before - blocks.hidden
    assert available(backend) == available(other) == before


def test_a_creation_that_is_given_up_after_a_look_had_begun_does_not_count_for_longer(
    backend, connect, blocks, monkeypatch
):
    backend.resume()
    before = available(connect())
    new = Path(backend.config.directory, "volumes/.new-w")
    with monkeypatch.context() as patch:
        free = Directory.free
        patch.setattr(Directory, "free", lambda directory: (new.mkdir(exist_ok=True), free(directory))[1])
        available(backend)  # all names were listed before
    new.rmdir()

    assert available(backend) == before


def test_what_a_killed_creation_has_left_counts_until_it_is_removed(backend, connect, blocks):
    backend.resume()
    before = available(connect())
    Path(backend.config.directory, "volumes/.new-w").mkdir()
    assert available(backend) <= before - blocks.hidden
    backend.check()

    assert available(backend) == before
