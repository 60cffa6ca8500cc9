"""What the kit (test_contract.py) does not try: leftovers of all kinds at once, processes that are killed."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from csi_multi_loop import directory_notes
from csi_multi_loop.client import Client

from csi_multi.contract import NotFound, PageRequest, SnapshotRequest, Stamp

MIB = 2**20
TEXT = b"precious" * 512


@pytest.fixture
def pools(connect, requests, image, tmp_path, monkeypatch):
    """Make a directory of its own per crash, with a volume that holds data, and its snapshot."""

    def pool(number):
        monkeypatch.setattr(directory_notes, "NOTES", tmp_path / f"directory-notes-{number}")
        directory = tmp_path / f"pool-{number}"
        backend = connect(directory, overprovision=1000)
        source = backend.create_volume(requests.volume("source", 4 * MIB)).handle
        with image(backend, source).open("r+b") as file:
            file.write(TEXT)
        backend.create_snapshot(requests.snapshot("snapshot", source))
        return backend

    return pool


def test_a_clean_up_that_died_anywhere_is_finished_by_the_next(pools, connect, crash, tmp_path, leftovers):
    dead = {}

    def prepare(call):
        dead["backend"] = pools(call)
        for name in (".new-a", ".gone-b"):
            rest = tmp_path / f"pool-{call}/volumes" / name
            rest.mkdir()
            (rest / "image").touch()
        return dead["backend"].resume

    for _ in crash.points(prepare):
        backend = reborn(connect, dead["backend"], True)

        assert leftovers(backend) == []
        assert len(backend.list_volumes(PageRequest()).items) == 1


@pytest.mark.parametrize("by", ["deletion", "check"])
def test_a_deletion_on_a_full_filesystem_that_died_anywhere_is_finished(
    pools, connect, crash, monkeypatch, leftovers, by
):
    def full(self, old, new):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(old))

    dead = {}

    def prepare(call):
        dead["backend"] = backend = pools(call)
        monkeypatch.setattr(Client, "rename", full)
        return lambda: backend.delete_snapshot("node-1/snapshot", {})

    for _ in crash.points(prepare):
        backend = reborn(connect, dead["backend"], False)
        if by == "check":
            backend.check()
            if not backend.list_snapshots(PageRequest()).items:
                assert leftovers(backend) == []
        with contextlib.suppress(NotFound):
            backend.delete_snapshot("node-1/snapshot", {})
        monkeypatch.undo()

        assert leftovers(backend) == []
        assert backend.list_snapshots(PageRequest()).items == ()
        backend.create_snapshot(requests_of("snapshot"))


def requests_of(name):
    stamp = Stamp(driver="multi.csi.test", cluster="c", name=name, digest="d", context={"k": "v"})
    return SnapshotRequest(stamp=stamp, source="node-1/source")


def reborn(connect, dead, resumed):
    """The next process: it remembers nothing."""
    backend = connect(Path(dead.config.directory), overprovision=1000)
    if resumed:
        backend.resume()
    return backend


CHILD = """
import sys
from csi_multi.contract.backend import Setting
from csi_multi.host.command import LocalHost
from csi_multi.contract.model import SizeRange, Source, SourceKind, Stamp, VolumeRequest
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config

config = Config(directory=sys.argv[1], reserve_percent=0, min_size=4096)
setting = Setting(instance="scratch", driver="multi.csi.test", cluster="c", node="node-1", host=LocalHost())
backend = LoopBackend(config, setting)
print("ready", flush=True)
for number in range(100000):
    stamp = Stamp(driver="multi.csi.test", cluster="c", name=f"e{number}", digest="d")
    backend.create_volume(VolumeRequest(stamp=stamp, size=SizeRange(required=4096)))
    source = Source(kind=SourceKind.VOLUME, handle="node-1/source")
    stamp = Stamp(driver="multi.csi.test", cluster="c", name=f"c{number}", digest="d", source=source)
    backend.clone_volume(VolumeRequest(stamp=stamp))
    backend.delete_volume(f"node-1/e{number}", {})
"""


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_whole_volumes_only(connect, requests, image, tmp_path, leftovers):
    backend = connect(min_size=4096)
    source = backend.create_volume(requests.volume("source", 4 * MIB)).handle
    image(backend, source).write_bytes(os.urandom(4 * MIB))
    content = image(backend, source).read_bytes()
    for round_ in range(15):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "pool")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child:
            assert child.stdout.readline() == b"ready\n", child.stderr.read()
            time.sleep(0.002 + round_ * 0.0137)
            child.send_signal(signal.SIGKILL)
        backend = connect(min_size=4096)
        backend.resume()

        assert leftovers(backend) == []
        for volume in backend.list_volumes(PageRequest()).items:
            leaf = volume.handle.partition("/")[2]
            wanted = bytes(4096) if leaf.startswith("e") else content
            assert image(backend, volume.handle).read_bytes() == wanted
            if volume.handle != source:
                backend.delete_volume(volume.handle, {})


def test_two_processes_make_one_volume_of_one_name(connect, requests, image, tmp_path, leftovers):
    backend = connect(min_size=4096)
    source = backend.create_volume(requests.volume("source", 4 * MIB)).handle
    image(backend, source).write_bytes(os.urandom(4 * MIB))
    race = CHILD.replace(
        "for number in range(100000):\n", "sys.stdin.readline()\nmade = 0\nfor number in range(100):\n"
    )
    race = (
        race.partition("    stamp =")[0]
        + """    stamp = Stamp(driver="multi.csi.test", cluster="c", name=f"e{number}", digest="d")
    try:
        backend.create_volume(VolumeRequest(stamp=stamp, size=SizeRange(required=4096)))
        made += 1
    except (AlreadyExists, Busy):
        pass
print(made)
"""
    )
    race = race.replace("import sys\n", "import sys\nfrom csi_multi.contract.errors import AlreadyExists, Busy\n")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", race, str(tmp_path / "pool")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    made = [int(child.communicate()[0]) for child in children]

    assert len(backend.list_volumes(PageRequest()).items) == sum(made) + 1
    assert sum(made) == 100
    assert leftovers(backend) == []
