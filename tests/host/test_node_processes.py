"""Processes that serve a device go on when the driver's container ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from csi_multi.host import node_processes

CGROUP = "csi-multi-test-server"
LIMIT = 20.0
# In a cgroup, and a cgroup namespace that begins there, as a container runtime makes them.
INSIDE = 'echo $$ > "$0/cgroup.procs" && exec unshare --cgroup "$@"'
DRIVER = """
import subprocess, sys
from pathlib import Path
from csi_multi.host import node_processes

node_processes.FIRST_NAMESPACE = Path(sys.argv[1], "self/ns/pid").stat().st_ino
kept, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
mine = Path("/proc/thread-self/ns/cgroup").readlink()
for _ in range(2):
    node_processes.move_to_cgroup(sys.argv[2], [kept.pid], Path(sys.argv[1]))
assert Path("/proc/thread-self/ns/cgroup").readlink() == mine
print(kept.pid, other.pid, flush=True)
other.wait()
"""


def unified() -> Path | None:
    """Where this machine has cgroups of version 2."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next((Path(words[1]) for words in mounts if words[2] == "cgroup2" and os.access(words[1], os.W_OK)), None)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """A cgroup that stands for the top of a node's tree, with one for a container."""
    top = unified()
    if top is None or os.geteuid():
        pytest.skip("this takes root, and cgroup v2 that can be changed")
    tree = top / f"csi-multi-{os.getpid()}"
    tree.mkdir()
    (tree / "container").mkdir()
    yield tree
    for cgroup in (tree / "container", tree / CGROUP, tree):
        with suppress(FileNotFoundError):
            cgroup.rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """What a container sees of the node's first process, for which this one stands."""
    proc = tmp_path / "proc"
    (proc / "1/root/sys/fs").mkdir(parents=True)
    (proc / "1/ns").symlink_to(f"/proc/{os.getpid()}/ns")
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").touch()
    return proc


@pytest.fixture
def host_pid(proc: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with hostPID: its pid namespace is the first one."""
    monkeypatch.setattr(node_processes, "FIRST_NAMESPACE", (proc / "self/ns/pid").stat().st_ino)
    return proc


def test_a_process_that_was_moved_outlives_the_container(tree: Path, proc: Path) -> None:
    container = tree / "container"
    (proc / "1/root/sys/fs/cgroup").symlink_to(tree)
    words = ("sh", "-c", INSIDE, str(container), sys.executable, "-c", DRIVER, str(proc), CGROUP)
    driver = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    ended: dict[int, int] = {}
    try:
        assert driver.stdout is not None
        with driver.stdout:
            kept, other = map(int, driver.stdout.readline().split())
        ended = {pid: os.pidfd_open(pid) for pid in (kept, other)}
        assert (tree / CGROUP / "cgroup.procs").read_text().split() == [str(kept)]
        assert set((container / "cgroup.procs").read_text().split()) == {str(driver.pid), str(other)}
        (container / "cgroup.kill").write_text("1")

        assert driver.wait(LIMIT) == -signal.SIGKILL
        assert over(ended[other], LIMIT)
        assert not over(ended[kept], 0)
    finally:
        driver.kill()
        driver.wait(LIMIT)
        for cgroup in (container, tree / CGROUP):
            with suppress(FileNotFoundError):
                (cgroup / "cgroup.kill").write_text("1")
        for process in ended.values():
            assert over(process, LIMIT)
            os.close(process)


def over(process: int, seconds: float) -> bool:
    """Whether the process behind a pidfd has ended, or does so in time."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def test_a_process_in_the_containers_own_pid_namespace_is_not_moved(proc: Path) -> None:
    """It would end with the container all the same: with the first process of its namespace."""
    tree = proc / "1/root/sys/fs/cgroup"
    tree.mkdir()
    (tree / "cgroup.controllers").touch()
    with pytest.raises(OSError, match="it needs hostPID"):
        node_processes.move_to_cgroup(CGROUP, [os.getpid()], proc)
    assert [file.name for file in tree.iterdir()] == ["cgroup.controllers"]


def test_without_cgroup_v2_nothing_is_made_and_the_reason_is_told(host_pid: Path) -> None:
    proc = host_pid
    tree = proc / "1/root/sys/fs/cgroup"
    tree.mkdir()
    with pytest.raises(OSError, match=r"cgroup\.controllers"):
        node_processes.move_to_cgroup(CGROUP, [os.getpid()], proc)
    assert list(tree.iterdir()) == []


def test_the_processes_of_a_program_are_found_with_their_arguments(tmp_path: Path) -> None:
    for pid, comm, words in (("7", "served", b"served\0--disk\0nbd0\0"), ("8", "served", b""), ("9", "other", b"x\0")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(f"{comm}\n")
        (tmp_path / pid / "cmdline").write_bytes(words)
    (tmp_path / "10").mkdir()  # it ended just now
    (tmp_path / "sys").mkdir()

    assert [*node_processes.running("served", tmp_path)] == [(7, [b"served", b"--disk", b"nbd0", b""])]


def test_a_program_with_a_long_name_is_found_by_what_the_kernel_keeps_of_it(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/comm").write_text("qemu-storage-da\n")
    (tmp_path / "7/cmdline").write_bytes(b"qemu-storage-daemon\0")

    assert [*node_processes.running("qemu-storage-daemon", tmp_path)] == [(7, [b"qemu-storage-daemon", b""])]
