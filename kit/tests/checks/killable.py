"""A client of a backend in this process that can be killed."""

from __future__ import annotations

from typing import Any

from csi_multi_testing.check import CHECKS, run
from csi_multi_testing.context import CheckContext, features_of
from csi_multi_testing.fault_injection import FaultInjector
from csi_multi_testing.in_process import InProcessClient
from csi_multi_testing.protocol import Target
from csi_multi_testing.storage import Storage


class Process(InProcessClient):
    """A client of a backend that can be killed, in place of the client over CSI."""

    target = Target.WIRE

    def restart(self, *, resume: bool = True) -> None:
        self.backend.dead = True
        super().restart(resume=resume)


def judged_killed(check: Any, storage: Storage) -> Any:
    client = Process(storage, FaultInjector())
    return run(
        CHECKS[check.__name__.replace("_", " ")],
        CheckContext(storage, client, features_of(type(client.backend)), FaultInjector()),
    )
