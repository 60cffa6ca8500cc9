"""Faults of a cluster for as long as a `with` lasts; afterwards the cluster works again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from .ceph_commands import Commands

Name = Literal["mon", "mgr", "osd"]
POOL_FULL = "POOL_FULL"
OSD_FULL = "OSD_FULL"
DELAY = "osd_debug_inject_dispatch_delay"


@contextmanager
def without(cluster: Commands, name: Name) -> Iterator[None]:
    """One of its daemons is not there, and the others know it. (A monitor is known to be gone by its silence.)"""
    daemon = getattr(cluster, name)
    daemon.stop()
    try:
        if name == "mgr":
            cluster.ceph("mgr", "fail", "x")  # else it is missed after half a minute
        if name == "osd":
            cluster.wait(lambda: not cluster.status()["osdmap"]["num_up_osds"], "miss its OSD")
        yield
    finally:
        daemon.start()
        cluster.wait(cluster.serves, "serve")


@contextmanager
def frozen(cluster: Commands, name: Name) -> Iterator[None]:
    """One of its daemons takes connections and requests, and answers none."""
    daemon = getattr(cluster, name)
    daemon.pause()
    try:
        yield
    finally:
        daemon.resume()
        cluster.wait(cluster.serves, "serve")


@contextmanager
def over_quota(cluster: Commands) -> Iterator[None]:
    """The pool may hold less than it does: reading works, whatever writes waits until that ends."""
    quota = ("osd", "pool", "set-quota", cluster.pool, "max_bytes")
    with _warned(cluster, POOL_FULL):
        cluster.ceph(*quota, "1")
        try:
            cluster.wait(lambda: _warns(cluster, POOL_FULL), "reach the quota")
            yield
        finally:
            cluster.ceph(*quota, "0")


@contextmanager
def full(cluster: Commands) -> Iterator[None]:
    """The OSD says that it is full: reading works, whatever writes waits until that ends."""
    inject = ("tell", "osd.0", "injectfull")
    with _warned(cluster, OSD_FULL):
        cluster.ceph(*inject, "full", "-1")
        try:
            cluster.wait(lambda: _warns(cluster, OSD_FULL), "be full")
            yield
        finally:
            cluster.ceph(*inject, "none")


@contextmanager
def slow(cluster: Commands, seconds: float) -> Iterator[None]:
    """The OSD takes so much longer for everything that it is sent; one `rbd create` sends dozens."""
    _configure(cluster, f"{DELAY}_duration", seconds)
    _configure(cluster, f"{DELAY}_probability", 1)
    try:
        yield
    finally:
        _configure(cluster, f"{DELAY}_probability", 0)
        cluster.wait(cluster.serves, "serve")


def _configure(cluster: Commands, name: str, value: float) -> None:
    cluster.ceph("tell", "osd.0", "config", "set", name, str(value))


@contextmanager
def _warned(cluster: Commands, check: str) -> Iterator[None]:
    """Wait at the end until the cluster no longer warns of it: the OSD refuses writes until it has heard so, too."""
    yield
    cluster.wait(lambda: not _warns(cluster, check), f"see the end of {check}")


def _warns(cluster: Commands, check: str) -> bool:
    return check in cluster.status()["health"]["checks"]
