"""Run a command in a QEMU guest that has this machine's files, and a kernel of its own.

For tests of what this machine's kernel or privileges do not allow; docs/testing.md says more. The command
sees the same root filesystem, environment and working directory as here, but runs as root with all
capabilities; /run, /tmp and TMPDIR are the guest's own, in memory. Output and errors come out together.
Files that it writes elsewhere are really written. Without a command: a shell.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from guest import BROKEN, Task, run
from image import ImageError, kernel


def main(arguments: list[str]) -> int:
    task = parse(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):  # while the image is prepared; a guest has its own handlers
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        return run(kernel(), task)
    except ImageError as error:
        print(f"guest: {error}", file=sys.stderr)
        return BROKEN


def parse(arguments: list[str]) -> Task:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="2G", help="of the guest, as qemu takes it (default: %(default)s)")
    parser.add_argument("--timeout", type=float, help="seconds, boot included; then exit status 124 (default: none)")
    parser.add_argument(
        "--modules", default="loop", help="to load at boot, with commas; filesystems load by themselves"
    )
    parser.add_argument(
        "--qemu-arg", action="append", default=[], metavar="WORD", help="one more word for qemu; repeat"
    )
    parser.add_argument("command", nargs="*", help="after --")
    options = parser.parse_args(arguments)
    if not options.command and not sys.stdin.isatty():
        parser.error("a shell needs a terminal; give a command after --")
    return Task(
        command=tuple(options.command),
        directory=Path.cwd(),
        environment=os.environ,
        modules=tuple(options.modules.split(",")) if options.modules else (),
        memory=options.memory,
        timeout=options.timeout,
        qemu=tuple(options.qemu_arg),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
