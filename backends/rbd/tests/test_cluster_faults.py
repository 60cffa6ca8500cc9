"""A cluster with faults: calls return in time, no work is lost, and the driver works again when the cluster does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
from csi_multi_rbd import background
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config
from csi_multi_rbd.errors import error_for

from csi_multi.contract import (
    Busy,
    InUse,
    NotFound,
    PageRequest,
    ResourceExhausted,
    Result,
    Setting,
    Snapshot,
    SnapshotRequest,
    StorageError,
    Timeout,
    Unavailable,
    Volume,
)
from csi_multi.core import idempotent

from . import volumes
from .ceph import Cluster
from .ceph_faults import frozen, full, over_quota, slow, without
from .volumes import SIZE, create, delete, expand, image, snapshot

pytestmark = pytest.mark.ceph  # some start a cluster of their own

CONNECT, COMMAND = 2, 5
IN_TIME = 3 * (CONNECT + COMMAND)  # the slowest are two commands, and a look whether the pool is full
RECOVERED = 90.0  # who was killed with an image open is forgotten after 30 s
# Limits of commands, and seconds to recover, that no machine is too busy for. A command that is killed at its limit
# while it has an image open keeps the next one waiting for 30 s, so with short limits a busy machine gets nowhere.
PATIENT, BUSY = 60, 900.0
NOT_FINAL = (Busy, Unavailable, Timeout)
AT_ONCE = 20

Acts = Mapping[str, Callable[[], object]]


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster to break."""
    with Cluster(tmp_path_factory.mktemp("frail")) as cluster:
        yield cluster


@pytest.fixture
def make(
    frail: Cluster, setting: Setting, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Callable[[], RbdBackend]]:
    """Make backends over a namespace of the test's own; their background tries again soon."""
    monkeypatch.setattr(background.BackgroundWorker.__init__, "__kwdefaults__", {"pause": 1.0})
    namespace, made = f"n{abs(hash(request.node.name)) % 10**8}", []
    frail.add(namespace)

    def make() -> RbdBackend:
        made.append(RbdBackend(settings(frail, namespace), setting))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def settings(cluster: Cluster, namespace: str, connect: int = CONNECT, command: int = COMMAND) -> Config:
    return Config(
        monitors=cluster.monitors,
        fsid=cluster.fsid,
        pool=cluster.pool,
        namespace=namespace,
        user=cluster.user,
        keyring=str(cluster.keyring),
        connect_seconds=connect,
        command_seconds=command,
    )


def limit_commands(backends: Iterable[RbdBackend], connect: int, command: int) -> None:
    """Change the time limits of drivers that run, which keep all that they remember."""
    for backend in backends:
        for pool in backend.pools.values():
            msgspec.structs.force_setattr(pool.config, "connect_seconds", connect)
            msgspec.structs.force_setattr(pool.config, "command_seconds", command)


def acts(made: Mapping[str, Volume | Snapshot], of: Callable[[], RbdBackend]) -> Acts:
    """Return one call of each kind; each on a backend that knows of no trouble yet."""
    source, cut = made["source"], made["cut"]
    assert isinstance(source, Volume)
    assert isinstance(cut, Snapshot)
    ours = {name: of() for name in ("create", "snap", "restore", "clone", "expand", "delete", "unsnap", "get", "list")}

    def cutting(backend: RbdBackend) -> Snapshot:
        return idempotent.create_snapshot(
            backend, SnapshotRequest(stamp=volumes.stamp(backend, "t"), source=source.handle)
        )

    def making(backend: RbdBackend, name: str, one: Volume | Snapshot | None = None) -> Volume:
        volume_request = volumes.copy_request(backend, name, one) if one else volumes.volume_request(backend, name)
        return idempotent.create_volume(backend, volume_request, "node-1")

    return {
        "create": lambda: making(ours["create"], "made"),
        "snap": lambda: cutting(ours["snap"]),
        "restore": lambda: making(ours["restore"], "restored", cut),
        "clone": lambda: making(ours["clone"], "cloned", source),
        "expand": lambda: expand(ours["expand"], made["small"], 2 * SIZE),  # type: ignore[arg-type]
        "delete": lambda: idempotent.delete_volume(ours["delete"], made["old"].handle, {}),
        "unsnap": lambda: idempotent.delete_snapshot(ours["unsnap"], made["older"].handle, {}),
        "get": lambda: ours["get"].get_volume(source.handle),
        "list": lambda: ours["list"].list_volumes(PageRequest()),
    }


def prepared(backend: RbdBackend) -> dict[str, Volume | Snapshot]:
    made: dict[str, Volume | Snapshot] = {name: create(backend, name) for name in ("source", "small", "old")}
    for name in ("cut", "older"):
        made[name] = snapshot(backend, name, made["source"])  # type: ignore[arg-type]
    return made


def all_at_once(calls: Acts, *, limit: float = IN_TIME) -> dict[str, StorageError | None]:
    """Make all calls; return what each raised. No call may take longer than the limit, or raise anything else."""

    def tried(name: str) -> tuple[str, StorageError | None, float]:
        started = time.monotonic()
        try:
            calls[name]()
        except StorageError as error:
            return name, error, time.monotonic() - started
        return name, None, time.monotonic() - started

    with ThreadPoolExecutor(len(calls)) as threads:
        outcomes = list(threads.map(tried, calls))
    late = [(name, round(seconds, 1), error) for name, error, seconds in outcomes if seconds > limit]
    assert late == []
    return {name: error for name, error, _ in outcomes}


def converge(calls: Acts, *, limit: float = IN_TIME, within: float = RECOVERED) -> None:
    """Ask again until each call has its answer, as an orchestrator does."""
    ends = time.monotonic() + within
    left = dict(calls)
    while left:
        for name, error in all_at_once(left, limit=limit).items():
            if error is None:
                del left[name]
            elif not isinstance(error, (*NOT_FINAL, ResourceExhausted, InUse)):
                raise error
        assert time.monotonic() < ends, f"{list(left)} did not come to an end"
        time.sleep(0.5 if left else 0)


def clean(
    cluster: Cluster, make: Callable[[], RbdBackend], *, limit: float = IN_TIME, within: float = RECOVERED
) -> None:
    """Delete all that is listed; then nothing is there."""
    backend = make()
    for one in (*backend.list_volumes(PageRequest()).items, *backend.list_snapshots(PageRequest()).items):
        converge({"delete": lambda: delete(backend, one)}, limit=limit, within=within)  # noqa: B023 - called at once
    namespace = backend.config.namespace
    backend.resume()
    cluster.wait(lambda: cluster.everything(namespace) == [], f"lose {cluster.everything(namespace)}", within)


FAULTS = [(without, "mon"), (frozen, "mon"), (without, "osd"), (frozen, "osd")]


@pytest.mark.parametrize(("fault", "daemon"), FAULTS, ids=[f"{fault.__name__}-{name}" for fault, name in FAULTS])
def test_no_call_waits_long_nor_gives_up_while_a_daemon_is_missing_and_all_succeed_afterwards(
    frail: Cluster, make: Callable[[], RbdBackend], fault: Callable[..., AbstractContextManager[None]], daemon: str
) -> None:
    calls = acts(prepared(make()), make)
    with fault(frail, daemon):
        outcomes = all_at_once(calls)
        assert {name for name, error in outcomes.items() if not isinstance(error, NOT_FINAL)} == set(), outcomes

    converge(calls)
    clean(frail, make)


@pytest.mark.parametrize("daemon", ["mon", "osd"])
def test_calls_do_not_pile_up_before_a_cluster_that_is_silent(
    frail: Cluster, make: Callable[[], RbdBackend], daemon: str
) -> None:
    backend = make()
    create(backend, "v")
    before = threading.active_count()

    def called(_: int) -> float:
        started = time.monotonic()
        with pytest.raises(NOT_FINAL):
            backend.get_volume("v")
        return time.monotonic() - started

    with frozen(frail, daemon):  # type: ignore[arg-type]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            first = list(threads.map(called, range(AT_ONCE)))
        again = [called(number) for number in range(3)]
        threads_left = threading.active_count() - before

    assert max(first) < IN_TIME
    assert min(again) < 0.1, "the driver knows by now"
    assert threads_left <= 1
    assert volumes.retried(lambda: backend.get_volume("v")).handle == "v"
    clean(frail, make)


def test_without_a_manager_everything_works(frail: Cluster, make: Callable[[], RbdBackend]) -> None:
    calls = acts(prepared(make()), make)
    with without(frail, "mgr"):
        assert set(all_at_once(calls).values()) == {None}
    clean(frail, make)


def test_a_slow_cluster_is_waited_for(frail: Cluster, make: Callable[[], RbdBackend]) -> None:
    calls = acts(prepared(make()), make)
    with slow(frail, 0.005):
        for call in calls.values():
            call()
    clean(frail, make)


@pytest.mark.parametrize("fault", [over_quota, full])
def test_a_full_pool_is_said_to_be_full_and_takes_volumes_again_afterwards(
    frail: Cluster, make: Callable[[], RbdBackend], fault: Callable[[Cluster], AbstractContextManager[None]]
) -> None:
    calls = acts(prepared(make()), make)
    with fault(frail):
        outcomes = all_at_once({name: calls[name] for name in ("create", "snap", "restore", "clone", "expand")})
        assert [name for name, error in outcomes.items() if not isinstance(error, ResourceExhausted)] == [], outcomes

    converge(calls, limit=BUSY, within=BUSY)
    clean(frail, make)


@pytest.mark.parametrize("namespace", ["of its own", ""])
@pytest.mark.parametrize("fault", [over_quota, full])
def test_deletions_in_a_full_pool_are_not_final_and_succeed_when_there_is_space(
    frail: Cluster,
    make: Callable[[], RbdBackend],
    setting: Setting,
    fault: Callable[[Cluster], AbstractContextManager[None]],
    namespace: str,
) -> None:
    backend = make() if namespace else RbdBackend(settings(frail, ""), setting)
    volume, source = create(backend, "old"), create(backend, "source")
    cut = snapshot(backend, "cut", source)
    calls: Acts = {
        "delete": lambda: idempotent.delete_volume(backend, volume.handle, {}),
        "unsnap": lambda: idempotent.delete_snapshot(backend, cut.handle, {}),
    }
    with fault(frail):
        outcomes = all_at_once(calls)
        assert [name for name, error in outcomes.items() if not isinstance(error, ResourceExhausted)] == [], outcomes

    converge(calls)
    volumes.retried(lambda: delete(backend, source))
    assert volumes.everything(frail, backend) == []
    backend.close()


@pytest.mark.ceph
def test_an_osd_that_is_killed_loses_nothing_and_nothing_stays(
    tmp_path: Path, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background.BackgroundWorker.__init__, "__kwdefaults__", {"pause": 1.0})
    with Cluster(tmp_path, store="bluestore") as cluster:
        cluster.add("n")
        made: list[RbdBackend] = []

        def make() -> RbdBackend:
            made.append(RbdBackend(settings(cluster, "n", PATIENT, PATIENT), setting))
            return made[-1]

        calls = acts(prepared(make()), make)
        limit_commands(made, CONNECT, COMMAND)  # what waits for an OSD that is dead need not wait long
        with ThreadPoolExecutor(1) as thread:
            outcomes = thread.submit(all_at_once, calls, limit=BUSY)
            time.sleep(0.1)
            cluster.osd.kill()
            outcomes.result()
        cluster.osd.start()
        cluster.wait(cluster.serves, "serve", BUSY)
        limit_commands(made, PATIENT, PATIENT)
        converge(calls, limit=BUSY, within=BUSY)
        volume = made[0].get_volume("source")
        assert volumes.info(cluster, made[0], volume)["name"] == image(made[0], volume)
        clean(cluster, make, limit=BUSY, within=BUSY)
        for backend in made:
            backend.close()


def test_what_is_gone_stays_gone_for_a_cluster_that_comes_back(frail: Cluster, make: Callable[[], RbdBackend]) -> None:
    """Only a cluster that answers may say that something does not exist."""
    backend = make()
    with frozen(frail, "mon"), pytest.raises(NOT_FINAL):
        backend.delete_volume("never-made", {})
    with pytest.raises(NotFound):
        volumes.retried(lambda: backend.delete_volume("never-made", {}))


def test_a_command_that_crashed_is_said_to_have_crashed_without_its_dump() -> None:
    error = error_for("rbd snap rm", Result(-11, "", "*** Caught signal ***\n--- end dump of recent events ---"))

    assert isinstance(error, Unavailable)
    assert str(error) == "rbd snap rm: it crashed or was killed (status -11)"
