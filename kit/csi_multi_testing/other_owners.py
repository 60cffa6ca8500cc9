"""Clients of other owners of the same storage: another cluster, another driver, another instance."""

from __future__ import annotations

from collections.abc import Mapping

from .assertions import CheckSkipped
from .context import CheckContext
from .fault_injection import FaultInjector
from .in_process import InProcessClient
from .storage import CLUSTER, DRIVER, changed_setting

# Of each, one name that has nothing to do with ours, and names that begin with it, or with which it begins.
OTHERS: tuple[Mapping[str, str], ...] = (
    {"cluster": "another"},
    {"driver": "another.example"},
    {"cluster": f"{CLUSTER}-2"},
    {"cluster": CLUSTER[:-1]},
    {"driver": f"{DRIVER}.org"},
    {"driver": DRIVER[:-1]},
    {"cluster": CLUSTER.upper()},
)


def client_of(t: CheckContext, changes: Mapping[str, object], injector: FaultInjector | None = None) -> InProcessClient:
    """Return a client whose Setting differs in these fields. Raises CheckSkipped where the kit cannot make one."""
    with changed_setting(changes):
        client = InProcessClient(t.storage, injector or FaultInjector())
    if any(getattr(client.backend.setting, name) != value for name, value in changes.items()):
        raise CheckSkipped("Storage.connect does not use csi_multi_testing.setting, so there is no other owner or node")
    return client
