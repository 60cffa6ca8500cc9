"""Several instances on one filesystem count together. Needs root, for filesystems of their own."""

import contextlib
import dataclasses
import os
import subprocess
import threading
from pathlib import Path

import pytest
from csi_multi_loop import directory as directory_module
from csi_multi_loop import shared_filesystem

from csi_multi.contract import CapacityRequest, ResourceExhausted, Unavailable

MIB = 2**20
pytestmark = pytest.mark.root


def available(backend):
    return backend.capacity(CapacityRequest()).available


@pytest.fixture
def second(setting):
    return dataclasses.replace(setting, instance="second")


@pytest.fixture
def two(filesystem, mount, connect, second, tmp_path, request):
    """Two instances on one filesystem of 64 MiB: beside each other, or each at a mount of its own."""
    disk = filesystem("tmpfs", 64 * MIB)
    paths = disk / "first", disk / "second"
    for path in paths:
        path.mkdir()
    if request.param == "mounted apart":
        paths = tuple(mount(path, tmp_path / path.name, "--bind") for path in paths)
    backends = connect(paths[0]), connect(paths[1], setting=second)
    for backend in backends:
        backend.check()
    return backends


@pytest.mark.parametrize("two", ["beside", "mounted apart"], indirect=True)
def test_two_instances_on_one_filesystem_do_not_promise_the_same_space(two, requests):
    first, other = two
    first.create_volume(requests.volume("v", 40 * MIB))

    assert available(first) == available(other) < 24 * MIB
    with pytest.raises(ResourceExhausted, match="also those of other instances on its"):
        other.create_volume(requests.volume("v", 40 * MIB))
    other.create_volume(requests.volume("v", 20 * MIB))
    assert available(first) < 4 * MIB
    with pytest.raises(ResourceExhausted):
        first.expand_volume(requests.expand("node-1/v", 48 * MIB))
    first.delete_volume("node-1/v", {})
    assert available(other) > 40 * MIB


@pytest.mark.parametrize("two", ["beside"], indirect=True)
def test_instances_of_two_drivers_beside_each_other_count_together(two, connect, setting, requests, tmp_path):
    first, other = two
    first.create_volume(requests.volume("v", 40 * MIB))
    shared_filesystem._filesystems.clear()  # in another process they do not know each other
    with pytest.raises(ResourceExhausted):
        other.create_volume(requests.volume("v", 40 * MIB))


@pytest.mark.parametrize("two", ["mounted apart"], indirect=True)
def test_simultaneous_creations_of_two_instances_do_not_count_the_same_space(two, requests, crash):
    first, other = two
    volumes = Path(first.config.directory) / "volumes"
    refused = []

    def create():
        try:
            other.create_volume(requests.volume("second", 40 * MIB))
        except ResourceExhausted:
            refused.append("second")

    thread = threading.Thread(target=create)

    def meanwhile():  # the first has counted the space, and has not taken it yet
        thread.start()
        thread.join(0.5)

    # Not in the whole directory: a note of another driver, found now, is written there before the space is counted.
    with crash.before("os.rename", meanwhile, below=volumes):
        first.create_volume(requests.volume("first", 40 * MIB))
    thread.join()

    assert refused == ["second"]


@pytest.fixture
def hanging():
    """Return what makes a process that locks a directory and then hangs, and returns its end."""
    with contextlib.ExitStack() as processes:

        def start(path):
            program = "echo held; exec sleep 600"
            arguments = ["flock", "--no-fork", path, "sh", "-c", program]
            process = processes.enter_context(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
            processes.callback(process.kill)
            assert process.stdout.readline() == "held\n"
            return lambda: (process.kill(), process.wait())

        yield start


@pytest.mark.parametrize("two", ["beside", "mounted apart"], indirect=True)
@pytest.mark.parametrize("whose", ["its own", "the other's"])
def test_a_process_that_hangs_with_a_directory_locked_stops_creations_for_a_limited_time(
    two, requests, hanging, monkeypatch, whose
):
    first, other = two
    first.create_volume(requests.volume("old", MIB))
    locked = (first if whose == "its own" else other)._directory.path
    end = hanging(locked)
    monkeypatch.setattr(directory_module, "LOCK_SECONDS", 0.5)

    for change in (
        lambda: first.create_volume(requests.volume("v", MIB)),
        lambda: first.clone_volume(requests.copy("clone", "volume", "node-1/old")),
        lambda: first.create_snapshot(requests.snapshot("s", "node-1/old")),
        lambda: first.expand_volume(requests.expand("node-1/old", 2 * MIB)),
    ):
        assert in_time(change) == (
            f"{locked} has been locked by another operation for 0.5 seconds; try again, or, if this goes on, end the "
            f"process that hangs ('fuser -v {locked}' names it)"
        )
    assert os.listdir(first._directory.path / "volumes") == ["old"]
    assert os.listdir(first._directory.path / "snapshots") == []
    assert first.get_volume("node-1/old").size == MIB

    end()
    first.create_volume(requests.volume("v", MIB))


def in_time(change):
    """Return the error of a call that must end by itself."""
    found = []

    def call():
        try:
            change()
        except Unavailable as error:
            found.append(str(error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits without limit"
    return found[0]


def test_an_instance_that_is_gone_and_one_on_another_filesystem_do_not_count(filesystem, connect, second, requests):
    first = connect(filesystem("tmpfs", 64 * MIB) / "pool")
    before = available(first)
    other = connect(filesystem("ext4", 128 * MIB) / "pool", setting=second)
    other.create_volume(requests.volume("v", 40 * MIB))

    assert available(first) == before
    with first._directory.sharing() as directories:
        assert [one.path for one in directories] == [first._directory.path]
