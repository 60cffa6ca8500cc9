"""The part of the lvm benchmark that needs device-mapper; `cases_lvm.py` runs it where that is available.

unshare --mount python -m bench.lvm_inside ROUNDS: prints a line with MARK and the measurements as JSON.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # as the driver does

import csi_multi_lvm.backend  # noqa: F401  # now: a busy guest takes longer than the driver waits for an import
import msgspec

from backends.lvm.tests.group import own_lvm, volume_group

from .cases_lvm import MARK
from .lvm_driver import RecordingHost, driver
from .lvm_processes import Lifecycle
from .lvm_rounds import Rounds

TYPES = ("thin", "linear")
POOL = 1 << 30


def main() -> None:
    found: dict[str, Any] = {"kernel": platform.release(), "times": {}, "processes": {}}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lvm = stack.enter_context(own_lvm())
        group = stack.enter_context(volume_group(lvm, directory, pool=POOL))
        found["lvm"] = lvm.run("lvm", "version")[0].partition(":")[2].strip()
        host = RecordingHost()
        client = stack.enter_context(driver(directory, group.name, group.pool, host))
        for type_ in TYPES:
            rounds = Rounds(client, host, group.name, group.pool, type_)
            found["times"][type_] = rounds.run(int(sys.argv[1]))
            found["processes"][type_] = Lifecycle(client, host, type_, directory).run()
    print(MARK + msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main()
