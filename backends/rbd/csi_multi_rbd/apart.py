"""Keep an rbd-nbd alive when the container ends that started it.

Who ends a container ends all that is in its cgroup, and so does systemd with a service; whether they share the node's
processes makes no difference. rbd-nbd begins in the driver's, and is moved into one beside: at the top of the node's
tree, as the node's first process sees it. From a cgroup namespace of the container's own the kernel would refuse that.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from csi_multi.host.blockdev import BlockDevices

CGROUP = "csi-multi-rbd-nbd"
NEW_CGROUP = 0x02000000  # linux/sched.h: CLONE_NEWCGROUP


def move(kernel: BlockDevices, pids: Iterable[int]) -> None:
    """Raises OSError where there is no cgroup v2, or it must not be changed."""
    with ThreadPoolExecutor(max_workers=1) as worker:  # a namespace is a thread's, and this one ends with it
        worker.submit(_move, kernel, tuple(pids)).result()


def _move(kernel: BlockDevices, pids: tuple[int, ...]) -> None:
    first = kernel.proc / "1"
    _enter(first / "ns" / "cgroup")
    tree = first / "root" / "sys" / "fs" / "cgroup"
    (tree / "cgroup.controllers").stat()  # only version 2 has that
    (tree / CGROUP).mkdir(exist_ok=True)
    for pid in pids:
        (tree / CGROUP / "cgroup.procs").write_text(str(pid))


def _enter(namespace: os.PathLike[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, NEW_CGROUP):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(namespace))
    finally:
        os.close(descriptor)
