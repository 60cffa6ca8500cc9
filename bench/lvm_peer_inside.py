"""The part of the benchmark beside csi-driver-lvm that needs device-mapper; `cases_peer_lvm.py` runs it.

unshare --mount python -m bench.lvm_peer_inside PROGRAM ROUNDS: prints a line with MARK and the measurements as JSON.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec

from backends.lvm.tests.group import own_lvm, volume_group
from csi_multi.rpc.client import Client

from . import processes
from .cases_lvm import MARK
from .cases_peer_node import NODE, Side, in_turns
from .lvm_driver import CONFIG, LONG
from .processes import Server, running

LINEAR = {"type": "linear"}
POOL = 256 << 20  # bytes
GUEST_START = 600.0  # seconds a driver may take to listen in a busy guest


def main() -> None:
    program, rounds = sys.argv[1], int(sys.argv[2])
    processes.START = GUEST_START
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lvm = stack.enter_context(own_lvm())
        group = stack.enter_context(volume_group(lvm, directory, pool=POOL))
        config = directory / "driver.yaml"
        config.write_text(CONFIG % (group.name, group.pool))
        words = {
            "ours": (sys.executable, "-m", "csi_multi", "serve", "--config", str(config)),
            "theirs": (
                *(program, "--endpoint", str(directory / "theirs.sock"), "--nodeid", NODE, "--vgname", group.name),
                *("--hostwritepath", str(directory), "--log-level", "error"),
            ),
        }
        creation = {"ours": {"parameters": {"backend": "disks", **LINEAR}}, "theirs": {"parameters": LINEAR}}
        sides = []
        for name in words:
            server = stack.enter_context(running(directory, name, words[name]))
            (directory / name).mkdir()
            sides.append(Side(server, _client(server, stack), directory / name, creation[name]))
        in_turns(sides, rounds)
        print(MARK + msgspec.json.encode([side.took for side in sides]).decode(), flush=True)


def _client(server: Server, stack: ExitStack) -> Client:
    client = Client(server.endpoint, timeout=LONG)
    stack.callback(client.close)
    client.wait(timeout=GUEST_START)
    return client


if __name__ == "__main__":
    main()
