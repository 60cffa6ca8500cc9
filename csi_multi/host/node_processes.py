"""Processes of the node that serve a device and go on when the driver's container ends.

Container runtimes and systemd end all processes in the cgroup of what they stop, even with the host's process ids. So
such a process is moved out of the driver's cgroup into one at the top of the node's tree, as the node's first process
sees it: from a cgroup namespace of the container the kernel refuses the move.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
FIRST_NAMESPACE = 0xEFFFFFFC  # linux/proc_ns.h: inode of the first pid namespace, that of the node
NEW_CGROUP = 0x02000000  # linux/sched.h: CLONE_NEWCGROUP
NAME_BYTES = 15  # of a program's name that the kernel keeps: TASK_COMM_LEN without its end


def all_visible(proc: Path = PROC) -> bool:
    """Return whether this process sees all processes of the node (`hostPID`), or only those of its container."""
    try:
        return (proc / "self" / "ns" / "pid").stat().st_ino == FIRST_NAMESPACE
    except OSError:
        return False


def running(program: str, proc: Path = PROC) -> Iterator[tuple[int, list[bytes]]]:
    """Yield process id and command line of every visible process of a program, by the first 15 characters of its name.

    Others whose name begins alike are among them: look at the command line.
    """
    for entry in proc.iterdir():
        with suppress(OSError):  # the process has ended meanwhile
            if not entry.name.isdecimal() or (entry / "comm").read_text().strip() != program[:NAME_BYTES]:
                continue
            if words := (entry / "cmdline").read_bytes():  # a zombie has none
                yield int(entry.name), words.split(b"\0")


def move_to_cgroup(cgroup: str, pids: Iterable[int], proc: Path = PROC) -> None:
    """Move processes into the cgroup of this name at the top of the node's tree; repeat it freely.

    Raises OSError without cgroup v2, without write access to it, or without the node's processes (`hostPID`): in a pid
    namespace of the container's own they would end with it, whatever their cgroup is.
    """
    if not all_visible(proc):
        raise OSError(errno.EPERM, "the processes are in the container's own pid namespace; it needs hostPID")
    with ThreadPoolExecutor(max_workers=1) as worker:  # a thread changes its namespace alone, and ends with the block
        worker.submit(_move_in_namespace, cgroup, tuple(pids), proc / "1").result()


def _move_in_namespace(cgroup: str, pids: tuple[int, ...], first: Path) -> None:
    _enter_namespace(first / "ns" / "cgroup")
    tree = first / "root" / "sys" / "fs" / "cgroup"
    (tree / "cgroup.controllers").stat()  # exists in version 2 only
    (tree / cgroup).mkdir(exist_ok=True)
    for pid in pids:
        (tree / cgroup / "cgroup.procs").write_text(str(pid))


def _enter_namespace(namespace: os.PathLike[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, NEW_CGROUP):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(namespace))
    finally:
        os.close(descriptor)
