"""The cached report includes the driver's own changes, and expires."""

from __future__ import annotations

from typing import cast

import pytest
from csi_multi_lvm.client import Client
from csi_multi_lvm.report import Group, LogicalVolume, Report
from csi_multi_lvm.report_cache import REPORT_TTL, ReportCache

VOLUME = LogicalVolume(name="csi-v", uuid="", size=2**22)


class CountingClient:
    """A client whose reports are counted, and which may do something while a report is read."""

    def __init__(self) -> None:
        self.reports = 0
        self.meanwhile = lambda: None

    def report(self) -> Report:
        self.reports += 1
        self.meanwhile()
        group = Group(name="vg0", extent_size=2**22, extents=10, free=10)
        return Report(group=group, volumes={}, disks=())


@pytest.fixture
def client() -> CountingClient:
    return CountingClient()


@pytest.fixture
def cache(client: CountingClient) -> ReportCache:
    return ReportCache(cast("Client", client))


def test_a_second_look_reads_no_report(cache: ReportCache, client: CountingClient) -> None:
    assert cache.get() is cache.get()
    assert client.reports == 1


def test_a_report_expires(cache: ReportCache, client: CountingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("csi_multi_lvm.report_cache.time.monotonic", lambda: now)
    cache.get()
    now += REPORT_TTL - 1
    cache.get()
    assert client.reports == 1

    now += 1
    cache.get()
    assert client.reports == 2


def test_own_creations_and_deletions_are_in_the_cached_report(cache: ReportCache, client: CountingClient) -> None:
    cache.get()

    cache.add(VOLUME, 3)
    assert (dict(cache.get().volumes), cache.get().group.free) == ({"csi-v": VOLUME}, 7)

    cache.remove("csi-v")
    assert (dict(cache.get().volumes), cache.get().group.free) == ({}, 7)  # freed space counts from the next report on
    assert client.reports == 1


@pytest.mark.parametrize("refresh", [ReportCache.fresh, lambda cache: (cache.clear(), cache.get())])
def test_a_fresh_report_replaces_the_cached_one(cache: ReportCache, client: CountingClient, refresh: object) -> None:
    cache.get()
    assert callable(refresh)
    refresh(cache)
    assert client.reports == 2


def test_a_report_that_a_change_overtook_is_not_cached(cache: ReportCache, client: CountingClient) -> None:
    client.meanwhile = lambda: cache.add(VOLUME, 3)
    cache.get()
    client.meanwhile = lambda: None

    cache.get()
    assert client.reports == 2
