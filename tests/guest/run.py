"""Run a command in a guest that has this machine's files and its own kernel.

It is for tests that need another kernel or more privileges than this machine has; see docs/testing.md. The command has
the same root filesystem, environment and working directory as on the machine, and runs as root with all capabilities.
/run, /tmp and TMPDIR belong to the guest. Standard output and standard error are one stream. Files that the command
writes elsewhere are written to the machine. Without a command, a shell starts. With --unless the guest is started only
if this machine lacks a feature; the tool prints where the command runs. The guest is an emulated machine (QEMU), or
with --user-mode a process of this machine (User-mode Linux), which is much faster.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import direct
from guest import BROKEN, Task, run
from image import ImageError, kernel, user_mode_kernel
from kernel import FEATURES
from network import NetworkError
from qemu import NETWORK, Qemu
from uml import UserMode


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    task = task_of(options)
    for number in (signal.SIGTERM, signal.SIGHUP):  # during the preparation of the image; a guest has its own handlers
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    if options.unless:
        reason = FEATURES[options.unless].missing()
        where = f"in a guest: {reason}" if reason else f"on this machine, which has {options.unless}"
        print(f"running {where}", flush=True)
        if not reason:
            return direct.run(task)
    try:
        if options.user_mode:
            return run(UserMode(user_mode_kernel(), options.network), task)
        return run(Qemu(kernel(), (*(NETWORK if options.network else ()), *options.qemu_arg)), task)
    except (ImageError, NetworkError) as error:
        print(f"guest: {error}", file=sys.stderr)
        return BROKEN


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--memory", default="2G", help="of the guest, in bytes or with K, M or G (default: %(default)s)"
    )
    parser.add_argument("--timeout", type=float, help="seconds, boot included; then exit status 124 (default: none)")
    parser.add_argument(
        "--modules", default="loop", help="to load at boot, with commas; filesystems load by themselves"
    )
    parser.add_argument(
        "--network",
        action="store_true",
        help="reach servers on this machine: in QEMU its loopback, as 10.0.2.2; in user mode its other addresses",
    )
    parser.add_argument(
        "--unless",
        choices=sorted(FEATURES),
        help="run the command on this machine if it has this; otherwise in a guest, with the modules for it",
    )
    parser.add_argument("--user-mode", action="store_true", help="a process of this machine, not an emulated machine")
    parser.add_argument(
        "--qemu-arg", action="append", default=[], metavar="WORD", help="one more word for qemu; repeat"
    )
    parser.add_argument("command", nargs="*", help="after --")
    options = parser.parse_args(arguments)
    if not options.command and not sys.stdin.isatty():
        parser.error("a shell needs a terminal; give a command after --")
    if not options.command and (options.unless or options.user_mode):
        parser.error("--unless and --user-mode need a command")
    if options.user_mode and options.qemu_arg:
        parser.error("--qemu-arg needs an emulated machine, without --user-mode")
    return options


def task_of(options: argparse.Namespace) -> Task:
    modules = options.modules.split(",") if options.modules else []
    if options.unless:
        modules += FEATURES[options.unless].modules
    if options.network and not options.user_mode:
        modules.append("virtio_net")
    return Task(
        command=tuple(options.command),
        directory=Path.cwd(),
        environment=os.environ,
        modules=tuple(modules),
        memory=options.memory,
        timeout=options.timeout,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
