"""Die at every call of the operating system; the retry leaves exactly one resource and no rest."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from csi_multi.errors import AlreadyExists, NotFound
from csi_multi.model import PageRequest

MIB = 2**20
TEXT = b"precious" * 512


@pytest.fixture
def pools(make, ask, image, tmp_path):
    """Make a directory of its own per crash, with a volume that holds data, and its snapshot."""

    def pool(number):
        directory = tmp_path / f"pool-{number}"
        backend = make(directory, overprovision=1000)
        source = backend.create_volume(ask.volume("source", 4 * MIB)).handle
        with image(backend, source).open("r+b") as file:
            file.write(TEXT)
        backend.create_snapshot(ask.snapshot("cut", source))
        return backend

    return pool


REQUESTS = {
    "create": lambda ask, digest: ask.volume("new", 4 * MIB, digest=digest),
    "restore": lambda ask, _: ask.copy("new", "snapshot", "node-1/cut", 8 * MIB),
    "clone": lambda ask, _: ask.copy("new", "volume", "node-1/source", 8 * MIB),
    "snapshot": lambda ask, digest: ask.snapshot("new", "node-1/source", digest),
}
CALLS = {"create": "create_volume", "restore": "restore_volume", "clone": "clone_volume", "snapshot": "create_snapshot"}


@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "retried at once"])
@pytest.mark.parametrize("what", list(REQUESTS))
def test_a_creation_that_died_anywhere_is_made_once(pools, make, ask, crash, image, leftovers, what, resumed):
    dead = {}

    def prepare(call):
        dead["backend"] = pools(call)
        return lambda: getattr(dead["backend"], CALLS[what])(REQUESTS[what](ask, "d"))

    died = 0
    for _ in crash.points(prepare):
        died += 1
        backend = reborn(make, dead["backend"], resumed)
        create = getattr(backend, CALLS[what])
        kind = "snapshots" if what == "snapshot" else "volumes"
        find = backend.find_snapshot if what == "snapshot" else backend.find_volume
        delete = backend.delete_snapshot if what == "snapshot" else backend.delete_volume
        try:
            made = create(REQUESTS[what](ask, "d"))
        except AlreadyExists:
            made = find("new")

        assert find("new") == made
        assert made.stamp == REQUESTS[what](ask, "d").stamp
        data = image(backend, made.handle, kind).read_bytes()
        assert len(data) == made.size
        assert data.rstrip(b"\0") == (b"" if what == "create" else TEXT)
        with pytest.raises(AlreadyExists):
            create(REQUESTS[what](ask, "other"))
        assert leftovers(backend) == []
        delete(made.handle, {})
        with pytest.raises(NotFound):
            find("new")
        assert leftovers(backend) == []
    assert died > 10


@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "retried at once"])
@pytest.mark.parametrize("what", ["volume", "snapshot"])
def test_a_deletion_that_died_anywhere_is_finished(pools, make, crash, leftovers, what, resumed):
    dead = {}
    handle = "node-1/source" if what == "volume" else "node-1/cut"

    def prepare(call):
        dead["backend"] = pools(call)
        return lambda: getattr(dead["backend"], f"delete_{what}")(handle, {})

    died = 0
    for _ in crash.points(prepare):
        died += 1
        backend = reborn(make, dead["backend"], resumed)
        with suppress(NotFound):
            getattr(backend, f"delete_{what}")(handle, {})

        assert leftovers(backend) == []
        with pytest.raises(NotFound):
            getattr(backend, f"get_{what}")(handle)
        other = backend.list_snapshots if what == "volume" else backend.list_volumes
        assert len(other(PageRequest()).items) == 1
    assert died > 5


@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "retried at once"])
def test_a_growth_that_died_anywhere_is_finished(pools, make, ask, crash, image, resumed):
    dead = {}

    def prepare(call):
        dead["backend"] = pools(call)
        return lambda: dead["backend"].expand_volume(ask.expand("node-1/source", 8 * MIB))

    for _ in crash.points(prepare):
        backend = reborn(make, dead["backend"], resumed)
        assert backend.volume_health("node-1/source", {}) == ()
        assert backend.expand_volume(ask.expand("node-1/source", 8 * MIB)).size == 8 * MIB

        assert backend.get_volume("node-1/source").size == 8 * MIB
        data = image(backend, "node-1/source").read_bytes()
        assert (len(data), data.rstrip(b"\0")) == (8 * MIB, TEXT)


def test_a_note_that_died_anywhere_is_old_or_new(pools, make, crash):
    dead = {}

    def prepare(call):
        dead["backend"] = pools(call)
        return lambda: dead["backend"].formatted("node-1/source")

    for _ in crash.points(prepare):
        backend = reborn(make, dead["backend"], True)
        assert backend.get_volume("node-1/source")
        backend.formatted("node-1/source")
        backend.delete_volume("node-1/source", {})


def test_a_clean_up_that_died_anywhere_is_done_by_the_next(pools, make, crash, tmp_path, leftovers):
    dead = {}

    def prepare(call):
        dead["backend"] = pools(call)
        for name in (".new-a", ".gone-b"):
            rest = tmp_path / f"pool-{call}/volumes" / name
            rest.mkdir()
            (rest / "image").touch()
        return dead["backend"].resume

    for _ in crash.points(prepare):
        backend = reborn(make, dead["backend"], True)

        assert leftovers(backend) == []
        assert len(backend.list_volumes(PageRequest()).items) == 1


def reborn(make, dead, resumed):
    """The next process: it remembers nothing."""
    backend = make(Path(dead.config.directory), overprovision=1000)
    if resumed:
        backend.resume()
    return backend


CHILD = """
import sys
from csi_multi.backend import Setting
from csi_multi.host import LocalHost
from csi_multi.model import SizeRange, Source, SourceKind, Stamp, VolumeRequest
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


def test_a_process_killed_at_any_moment_leaves_whole_volumes_only(make, ask, image, tmp_path, leftovers):
    backend = make(min_size=4096)
    source = backend.create_volume(ask.volume("source", 4 * MIB)).handle
    image(backend, source).write_bytes(os.urandom(4 * MIB))
    content = image(backend, source).read_bytes()
    for round_ in range(15):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "pool")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child:
            assert child.stdout.readline() == b"ready\n", child.stderr.read()
            time.sleep(0.002 + round_ * 0.0137)
            child.send_signal(signal.SIGKILL)
        backend = make(min_size=4096)
        backend.resume()

        assert leftovers(backend) == []
        for volume in backend.list_volumes(PageRequest()).items:
            leaf = volume.handle.partition("/")[2]
            wanted = bytes(4096) if leaf.startswith("e") else content
            assert image(backend, volume.handle).read_bytes() == wanted
            if volume.handle != source:
                backend.delete_volume(volume.handle, {})


def test_two_processes_make_one_volume_of_one_name(make, ask, image, tmp_path, leftovers):
    backend = make(min_size=4096)
    source = backend.create_volume(ask.volume("source", 4 * MIB)).handle
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
    race = race.replace("import sys\n", "import sys\nfrom csi_multi.errors import AlreadyExists, Busy\n")
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
