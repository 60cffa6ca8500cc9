"""rbd-nbd processes outlive the cgroup that they were started in: on real cgroups, with processes of the test's own."""

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
from csi_multi_rbd import apart

from csi_multi.host.blockdev import BlockDevices

LIMIT = 20.0
# In a cgroup, and a cgroup namespace that begins there, as a container runtime makes them.
INSIDE = 'echo $$ > "$0/cgroup.procs" && exec unshare --cgroup "$@"'
DRIVER = """
import subprocess, sys
from pathlib import Path
from csi_multi_rbd import apart
from csi_multi.host.blockdev import Kernel

kept, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
mine = Path("/proc/thread-self/ns/cgroup").readlink()
for _ in range(2):
    apart.move(Kernel(proc=Path(sys.argv[1])), [kept.pid])
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
    for cgroup in (tree / "container", tree / apart.CGROUP, tree):
        with suppress(FileNotFoundError):
            cgroup.rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """What a container sees of the node's first process, for which this one stands."""
    proc = tmp_path / "proc"
    (proc / "1/root/sys/fs").mkdir(parents=True)
    (proc / "1/ns").symlink_to(f"/proc/{os.getpid()}/ns")
    return proc


def test_what_was_set_apart_outlives_the_container(tree: Path, proc: Path) -> None:
    container = tree / "container"
    (proc / "1/root/sys/fs/cgroup").symlink_to(tree)
    words = ("sh", "-c", INSIDE, str(container), sys.executable, "-c", DRIVER, str(proc))
    driver = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    with driver.stdout:
        kept, other = map(int, driver.stdout.readline().split())
    ended = {pid: os.pidfd_open(pid) for pid in (kept, other)}
    try:
        assert (tree / apart.CGROUP / "cgroup.procs").read_text().split() == [str(kept)]
        assert set((container / "cgroup.procs").read_text().split()) == {str(driver.pid), str(other)}
        (container / "cgroup.kill").write_text("1")

        assert driver.wait(LIMIT) == -signal.SIGKILL
        assert over(ended[other], LIMIT)
        assert not over(ended[kept], 0)
    finally:
        os.kill(kept, signal.SIGKILL)
        assert over(ended[kept], LIMIT)
        for descriptor in ended.values():
            os.close(descriptor)


def over(process: int, seconds: float) -> bool:
    """Whether the process behind a pidfd has ended, or does so in time."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def test_without_cgroup_v2_nothing_is_made_and_the_reason_is_told(proc: Path) -> None:
    tree = proc / "1/root/sys/fs/cgroup"
    tree.mkdir()
    with pytest.raises(OSError, match=r"cgroup\.controllers"):
        apart.move(BlockDevices(proc=proc), [os.getpid()])
    assert list(tree.iterdir()) == []
