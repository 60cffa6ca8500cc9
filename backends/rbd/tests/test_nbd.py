"""Which devices of rbd-nbd show an image of the instance, and whether a process serves them."""

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
from csi_multi_rbd import nbd

from csi_multi.host.blockdev import BlockDevices

from .fake_node import FSID, FakeKernel, config


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def cookie(image: str = "v", image_id: str = "abc", *, exclusive: bool = True, **values: object) -> str:
    return str(nbd.cookie(config(**values), image, image_id, exclusive=exclusive))


def test_a_mapping_is_found_and_its_cookie_is_its_proof(kernel: FakeKernel) -> None:
    disk = kernel.nbd(cookie())

    ((image, found),) = nbd.find(kernel, config(), "v")
    assert image == "v"
    assert (found.kind, found.disk, found.number, found.image_id) == ("nbd", disk, "43:0", "abc")
    assert found.proof == {"backend": f"{FSID}/k8s//v/abc/exclusive"}
    assert found.exclusive
    assert found.served


def test_a_shared_one_says_so(kernel: FakeKernel) -> None:
    kernel.nbd(cookie(exclusive=False))
    ((_, found),) = nbd.find(kernel, config(), "v")
    assert not found.exclusive


@pytest.mark.parametrize(
    "other",
    [
        cookie("v2"),
        cookie(pool="other"),
        cookie(namespace="team"),
        cookie(fsid="99999999-2222-3333-4444-555555555555"),
        "",
        "0001-0024-ceph-csi-volume",
        f"{FSID}/k8s//v/abc/often",
        f"{FSID}/k8s//v/abc",
    ],
)
def test_what_was_made_for_something_else_is_not_ours(kernel: FakeKernel, other: str) -> None:
    kernel.nbd(other)
    assert list(nbd.find(kernel, config(), "v")) == []


def test_a_device_that_nothing_is_mapped_on_is_none(kernel: FakeKernel) -> None:
    disk = kernel.nbd(cookie())
    (kernel.sys / "block" / disk / "backend").unlink()
    assert list(nbd.find(kernel, config(), "v")) == []


def test_all_are_found_without_a_name(kernel: FakeKernel) -> None:
    for image in ("a", "b"):
        kernel.nbd(cookie(image))
    assert [image for image, _ in nbd.find(kernel, config())] == ["a", "b"]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes of the node are in sight."""
    monkeypatch.setattr(nbd, "sees_processes", lambda _: True)


def served(kernel: FakeKernel) -> bool:
    ((_, found),) = nbd.find(kernel, config(), "v")
    return found.served


def test_a_device_whose_process_is_gone_is_not_served(kernel: FakeKernel, whole: None) -> None:
    kernel.nbd(cookie(), pid=500)
    assert served(kernel)
    kernel.end(500)
    assert not served(kernel)


def test_another_program_that_has_the_number_by_now_serves_nothing(kernel: FakeKernel, whole: None) -> None:
    kernel.nbd(cookie(), pid=500)
    kernel.end(500)
    kernel.process(500, "nginx")
    assert not served(kernel)


def test_a_process_that_has_ended_and_is_not_buried_serves_nothing(kernel: FakeKernel, whole: None) -> None:
    kernel.nbd(cookie(), pid=500)
    (kernel.proc / "500" / "cmdline").write_text("")
    assert not served(kernel)


def test_a_second_process_serves_the_device_that_it_was_started_for(kernel: FakeKernel, whole: None) -> None:
    """sysfs goes on showing the number of the first."""
    disk = kernel.nbd(cookie(), pid=500)
    kernel.end(500)
    kernel.process(600, "rbd-nbd", "attach", "k8s/v", "--device", f"{kernel.dev / disk}0")
    assert not served(kernel)
    kernel.process(601, "rbd-nbd", "attach", "k8s/v", "--device", str(kernel.dev / disk))
    assert served(kernel)


def test_a_container_without_the_nodes_processes_is_told_by_its_namespace(kernel: FakeKernel, tmp_path: Path) -> None:
    """And does not take what is out of sight for dead."""
    kernel.nbd(cookie(), pid=500)
    kernel.end(500)
    assert served(kernel)
    assert not nbd.sees_processes(kernel)
    (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "ns" / "pid").touch()
    assert not nbd.sees_processes(kernel)


LIMIT = 20.0
# In a cgroup, and a cgroup namespace that begins there, as a container runtime makes them.
INSIDE = 'echo $$ > "$0/cgroup.procs" && exec unshare --cgroup "$@"'
DRIVER = """
import subprocess, sys
from pathlib import Path
from csi_multi_rbd import nbd
from csi_multi.host.blockdev import BlockDevices

kept, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
mine = Path("/proc/thread-self/ns/cgroup").readlink()
for _ in range(2):
    nbd.move_to_cgroup(BlockDevices(proc=Path(sys.argv[1])), [kept.pid])
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
    for cgroup in (tree / "container", tree / nbd.CGROUP, tree):
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
        assert (tree / nbd.CGROUP / "cgroup.procs").read_text().split() == [str(kept)]
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
        nbd.move_to_cgroup(BlockDevices(proc=proc), [os.getpid()])
    assert list(tree.iterdir()) == []
