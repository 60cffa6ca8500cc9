"""How many commands each operation takes, on a cluster in memory: each costs tens of milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from csi_multi_rbd import capacity, circuit_breaker, health, trash, watchers
from csi_multi_rbd.backend import RbdBackend

from csi_multi.contract import (
    CapacityRequest,
    FailedPrecondition,
    InUse,
    NotFound,
    PageRequest,
    Snapshot,
    SnapshotRequest,
    Source,
    SourceKind,
    Unavailable,
    Volume,
)
from csi_multi.core import filesystems, idempotent

from .fake_cluster import FakeCluster
from .volumes import MOUNTED, SIZE, copy, create, delete, expand, image, snapshot, stamp, volume_request

IDLE_SECONDS = 10.0
LOOK, READ, LABEL = "rbd info", "rbd image-meta list", "rbd image-meta set"


@pytest.fixture
def pool() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def backend(pool: FakeCluster) -> Iterator[RbdBackend]:
    backend = pool.backend()
    backend.check()
    yield backend
    backend.close()


@pytest.fixture
def known(backend: RbdBackend) -> Volume:
    """A volume whose label was read."""
    create(backend, "v")
    return backend.get_volume("v")


def cut_of(backend: RbdBackend, name: str, volume: Volume) -> Snapshot:
    """Create a snapshot as the RPC does."""
    filesystems.snapshot_context(backend, volume.handle)
    return snapshot(backend, name, volume)


def copied(backend: RbdBackend, name: str, one: Volume | Snapshot) -> Volume:
    """Create a volume with a filesystem from another or a snapshot as the RPC does."""
    kind = SourceKind.VOLUME if isinstance(one, Volume) else SourceKind.SNAPSHOT
    filesystems.source_context(backend, Source(kind=kind, handle=one.handle))
    return copy(backend, name, one, capabilities=MOUNTED)


def test_a_creation_takes_one_command(pool: FakeCluster, backend: RbdBackend) -> None:
    with pool.counted() as seen:
        create(backend, "v")

    assert seen == ["rbd import"]


def test_an_expansion_takes_two(pool: FakeCluster, backend: RbdBackend, known: Volume) -> None:
    with pool.counted() as seen:
        filesystems.volume_context(backend, known.handle)  # as the RPC does
        expand(backend, known, 2 * SIZE)

    assert seen == [LOOK, "rbd resize"]


def test_a_deletion_takes_four_of_which_two_run_at_once(pool: FakeCluster, backend: RbdBackend, known: Volume) -> None:
    """The label is read anew, whatever is known of it."""
    with pool.counted() as seen:
        delete(backend, known)

    assert (sorted(seen[:2]), seen[2:]) == ([READ, LOOK], ["rbd status", "rbd trash mv"])


def test_the_deletion_of_a_volume_that_was_not_seen_takes_four_one_after_the_other(
    pool: FakeCluster, backend: RbdBackend, known: Volume
) -> None:
    restarted = pool.backend()
    with pool.counted() as seen:
        delete(restarted, known)

    assert seen == [LOOK, READ, "rbd status", "rbd trash mv"]
    restarted.close()


def test_a_deletion_that_is_repeated_looks_once(pool: FakeCluster, backend: RbdBackend, known: Volume) -> None:
    delete(backend, known)
    with pool.counted() as seen, pytest.raises(NotFound):
        delete(backend, known)

    assert seen == [LOOK, "rbd ls"]


def test_a_snapshot_takes_four_before_the_answer_and_one_after_it(
    pool: FakeCluster, backend: RbdBackend, known: Volume
) -> None:
    with pool.counted() as seen:
        cut_of(backend, "s", known)

    assert seen == [LOOK, "rbd snap create", "rbd clone", LABEL]
    assert backend.wait_until_idle(IDLE_SECONDS)
    assert [one for one in pool.background if "snap" in one] == [
        f"rbd snap rm k8s/{image(backend, known)}@csi-tmp-snap-s"
    ]
    assert [one.namespace for one in pool.images[image(backend, known)].snapshots] == ["trash"]


def test_a_clone_takes_four_before_the_answer(pool: FakeCluster, backend: RbdBackend, known: Volume) -> None:
    with pool.counted() as seen:
        copied(backend, "c", known)

    assert seen == [LOOK, "rbd snap create", "rbd clone", LABEL]


def test_a_restore_takes_three_and_the_first_of_a_snapshot_one_more(
    pool: FakeCluster, backend: RbdBackend, known: Volume
) -> None:
    snapshot(backend, "s", known)
    cut = backend.get_snapshot("s")
    with pool.counted() as first:
        copied(backend, "r", cut)
    with pool.counted() as second:
        copied(backend, "q", cut)

    assert first == [LOOK, "rbd snap create", "rbd clone", LABEL]
    assert second == [LOOK, "rbd clone", LABEL]


def test_deleting_a_snapshot_takes_three_and_one_that_was_restored_four(
    pool: FakeCluster, backend: RbdBackend, known: Volume
) -> None:
    unused, restored = snapshot(backend, "s", known), snapshot(backend, "t", known)
    copy(backend, "r", restored)
    for cut, expected in ((unused, ["rbd trash mv"]), (restored, ["rbd snap rm", "rbd trash mv"])):
        backend.get_snapshot(cut.handle)
        with pool.counted() as seen:
            delete(backend, cut)
        assert (sorted(seen[:2]), seen[2:]) == ([READ, LOOK], expected)


def test_a_snapshot_with_other_snapshots_than_ours_is_looked_at(
    pool: FakeCluster, backend: RbdBackend, known: Volume
) -> None:
    cut = snapshot(backend, "s", known)
    backend.get_snapshot("s")
    pool.answer(["rbd", "snap", "create", f"k8s/{image(backend, cut)}@by-hand"], {}, "")

    with pool.counted() as seen, pytest.raises(InUse, match="by-hand"):
        delete(backend, cut)
    assert "rbd trash mv" not in seen
    assert [one.name for one in pool.images[image(backend, cut)].snapshots] == ["by-hand"]


def test_a_repeated_creation_takes_one_and_three_after_a_restart(pool: FakeCluster, backend: RbdBackend) -> None:
    request = volume_request(backend, "v")
    made = idempotent.create_volume(backend, request, "node-1")
    restarted = pool.backend()
    restarted.check()
    with pool.counted() as after_a_restart:
        assert idempotent.create_volume(restarted, request, "node-1") == made
    with pool.counted() as again:
        assert idempotent.create_volume(restarted, request, "node-1") == made

    assert after_a_restart == ["rbd import", LOOK, READ]
    assert again == [LOOK]


def test_a_repeated_snapshot_takes_three_at_most(pool: FakeCluster, backend: RbdBackend, known: Volume) -> None:
    request = SnapshotRequest(stamp=stamp(backend, "s"), source=known.handle)
    made = idempotent.create_snapshot(backend, request)
    with pool.counted() as second:
        assert idempotent.create_snapshot(backend, request) == made
    with pool.counted() as third:
        assert idempotent.create_snapshot(backend, request) == made

    assert second == [LOOK, READ, LOOK]
    assert third == [LOOK, LOOK]


def test_a_known_volume_that_is_open_stays(
    pool: FakeCluster, backend: RbdBackend, known: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "CLOSING_SECONDS", 0.0)
    monkeypatch.setattr(watchers, "POLL_SECONDS", 0.001)
    pool.images[image(backend, known)].watchers.append("10.0.0.7:0/1")

    with pool.counted() as seen, pytest.raises(InUse, match=r"10\.0\.0\.7"):
        delete(backend, known)
    assert "rbd trash mv" not in seen


def test_a_refused_deletion_keeps_the_snapshot_that_restores_are_made_from(
    pool: FakeCluster, backend: RbdBackend, known: Volume
) -> None:
    cut = snapshot(backend, "s", known)
    copy(backend, "r", cut)
    pool.answer(["rbd", "snap", "create", f"k8s/{image(backend, cut)}@by-hand"], {}, "")

    with pytest.raises(InUse, match="by-hand"):
        delete(backend, cut)
    assert [one.name for one in pool.images[image(backend, cut)].snapshots] == ["csi-base", "by-hand"]


def test_an_idle_check_takes_one_command_every_hour_and_a_listing_of_the_trash_every_ten_minutes(
    pool: FakeCluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = pool.backend()
    with pool.counted() as first:
        starting.check()
    with pool.counted() as second:
        starting.check()
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.0)
    with pool.counted() as later:
        starting.check()

    assert first == ["ceph status;", "rbd ls", "rbd group ls"]  # these are for what an earlier process left
    assert second == []
    assert later == ["ceph status;"]
    assert pool.run[-1] == "ceph status; df detail"
    starting.close()


def test_a_cluster_that_stops_to_answer_is_noticed_by_the_listing_of_the_trash(
    pool: FakeCluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "RETRY", 0.0)
    monkeypatch.setattr(trash, "SWEEP_SECONDS", 0.0)
    pool.down = True
    for _ in range(2):  # the second asks the monitors themselves
        with pytest.raises(Unavailable):
            backend.check()
    pool.down = False
    listed = len(pool.background)

    backend.check()
    assert pool.run[-1] == "ceph status; df detail"
    assert pool.background[listed:] == ["rbd trash ls k8s"]


def test_a_cluster_that_does_not_answer_is_asked_at_every_check_until_it_does(
    pool: FakeCluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "RETRY", 0.0)
    pool.down = True
    backend.check()
    with pytest.raises(Unavailable):
        backend.get_volume("v")  # so it is known
    for _ in range(2):
        with pytest.raises(Unavailable):
            backend.check()
    pool.down = False
    with pool.counted() as seen:
        backend.check()
        backend.check()

    assert seen == ["ceph status;"]


def test_a_check_that_failed_is_repeated_at_once(
    pool: FakeCluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.fsid = "00000000-0000-0000-0000-000000000000"
    backend.check()
    with monkeypatch.context() as patched:
        patched.setattr(health, "CHECK_SECONDS", 0.0)
        with pytest.raises(FailedPrecondition, match="belong to cluster"):
            backend.check()

    with pytest.raises(FailedPrecondition, match="belong to cluster"):
        backend.check()


def test_the_capacity_comes_from_the_last_report_while_that_is_young(
    pool: FakeCluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool.counted() as young:
        first = backend.capacity(CapacityRequest()).available
    pool.available //= 2
    monkeypatch.setattr(capacity, "REPORT_TTL", 0.0)
    with pool.counted() as old:
        second = backend.capacity(CapacityRequest()).available

    assert (young, old) == ([], ["ceph df"])
    assert (first, second) == (2**40, 2**39)


def test_many_creations_after_an_old_report_ask_for_one_new_one(
    pool: FakeCluster, backend: RbdBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, asked = threading.Event(), list[str]()

    def before(command: str) -> None:
        if command.startswith("ceph df"):
            asked.append(command)
            second.set() if len(asked) > 1 else second.wait(0.2)

    backend.main.capacity.invalidate(backend.config.pool)
    pool.before = before
    with pool.counted() as seen, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: create(backend, f"v{number}"), range(8)))

    assert sorted(seen) == ["ceph df"] + ["rbd import"] * 8


def pages(backend: RbdBackend, limit: int) -> list[list[str]]:
    found, cursor = list[list[str]](), ""
    while not found or cursor:
        page = backend.list_volumes(PageRequest(cursor=cursor, limit=limit))
        found.append([one.handle for one in page.items])
        cursor = page.cursor
    return found


def test_all_pages_of_a_listing_come_from_one_command(pool: FakeCluster, backend: RbdBackend) -> None:
    for number in (3, 1, 4, 0, 2):
        create(backend, f"v{number}")
    with pool.counted() as first:
        assert pages(backend, 2) == [["v0", "v1"], ["v2", "v3"], ["v4"]]
    with pool.counted() as second:
        assert len(pages(backend, 2)) == 3

    assert sorted(first) == [READ] * 5 + ["rbd ls"]
    assert second == ["rbd ls"]


def test_a_start_takes_one_listing_whatever_there_is(pool: FakeCluster, backend: RbdBackend, known: Volume) -> None:
    cut = snapshot(backend, "s", known)
    for number in range(5):
        copy(backend, f"r{number}", cut)
    copy(backend, "c", known)
    assert backend.wait_until_idle(IDLE_SECONDS)
    starting, before = pool.backend(), len(pool.background)
    with pool.counted() as seen:
        starting.resume()

    assert seen == ["rbd ls", "rbd group ls"]
    assert pool.background[before:] == ["rbd trash ls k8s"]
    starting.close()
