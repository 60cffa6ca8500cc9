"""A pool that is full on a real cluster, with the time limits that an instance has by default."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config

from csi_multi.contract import ResourceExhausted, Setting, Volume

from .ceph import Cluster
from .ceph_faults import full, over_quota
from .volumes import create, delete, expand, retried, snapshot

SOON = 6  # times in `command_seconds`, which is a minute: so within ten seconds

ACTS: dict[str, Callable[[RbdBackend, Volume], object]] = {
    "create": lambda backend, _: create(backend, "new"),
    "expand": lambda backend, volume: expand(backend, volume, 2 * volume.size),
    "snapshot": lambda backend, volume: snapshot(backend, "cut", volume),
    "delete": delete,
}


@pytest.mark.parametrize("fault", [over_quota, full])
def test_a_full_pool_is_said_to_be_full_long_before_the_time_limit(
    cluster: Cluster,
    config: Config,
    setting: Setting,
    fault: Callable[[Cluster], AbstractContextManager[None]],
) -> None:
    backends = {name: RbdBackend(config, setting) for name in ACTS}  # none knows what another one has found
    volumes = {name: create(backend, name) for name, backend in backends.items()}

    def refused(name: str) -> float:
        started = time.monotonic()
        with pytest.raises(ResourceExhausted, match=r"full|quota"):
            ACTS[name](backends[name], volumes[name])
        return time.monotonic() - started

    with fault(cluster), ThreadPoolExecutor(len(ACTS)) as threads:
        seconds = dict(zip(ACTS, threads.map(refused, ACTS), strict=True))
    late = {name: spent for name, spent in seconds.items() if spent > config.command_seconds / SOON}
    assert late == {}

    for name, backend in backends.items():
        retried(lambda act=ACTS[name], backend=backend, volume=volumes[name]: act(backend, volume))  # type: ignore[misc]
        backend.close()
    cluster.wait(lambda: cluster.watched(config.namespace) == [], "forget the commands that were killed")
