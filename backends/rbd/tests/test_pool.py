"""An instance with two pools of a cluster, each for the nodes of one zone."""

from __future__ import annotations

import copy as copies
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config
from csi_multi_rbd.pool_rules import OtherPool

from csi_multi.contract import (
    AlreadyExists,
    CapacityRequest,
    DryRunReport,
    InvalidArgument,
    InvalidToken,
    NotFound,
    PageRequest,
    ResourceExhausted,
    Setting,
    Snapshot,
    Stamp,
    TopologyRequirement,
    Volume,
)
from csi_multi.contract.model import IMPORTED
from csi_multi.core.idempotent import create_snapshot, create_volume
from csi_multi.process.driver_process import DriverProcess

from . import volumes
from .ceph import Cluster
from .volumes import (
    BACKGROUND_SECONDS,
    MIB,
    SIZE,
    copy,
    copy_request,
    create,
    delete,
    expand,
    image,
    read,
    snapshot,
    spec,
    volume_request,
    write,
)

OTHER = "k8s-b"
A, B = {"zone": "a"}, {"zone": "b"}
GIVEN = {"monitors", "fsid", "pool", "namespace", "user", "keyring", "topology", "nodes", "pools"}
IN_A, IN_B, ANYWHERE = (TopologyRequirement(requisite=places) for places in ((A,), (B,), (A, B)))


@pytest.fixture(scope="module")
def two_pools(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, seen from a second pool that the user may use as well."""
    cluster.ceph_each(f"osd pool create {OTHER} 8", f"osd pool application enable {OTHER} rbd")
    cluster.rbd("pool", "init", OTHER)
    allow(cluster, cluster.pool, OTHER)
    other = copies.copy(cluster)
    other.pool = OTHER
    yield other
    allow(cluster, cluster.pool)


def allow(cluster: Cluster, *pools: str) -> None:
    profiles = ", ".join(f"profile rbd pool={one}" for one in pools)
    caps = ("mon", "profile rbd", "osd", profiles, "mgr", profiles)
    cluster.ceph("auth", "caps", f"client.{cluster.user}", *caps)


@pytest.fixture
def other(two_pools: Cluster, namespace: str) -> Iterator[Cluster]:
    two_pools.add(namespace)
    yield two_pools
    two_pools.remove(namespace)


@pytest.fixture
def zoned(config: Config, other: Cluster) -> Config:
    pools = {other.pool: OtherPool(topology=B, nodes=("b-*",))}
    return msgspec.structs.replace(config, topology=A, nodes=("a-*",), pools=pools)


@pytest.fixture
def backend(zoned: Config, setting: Setting) -> Iterator[RbdBackend]:
    backend = RbdBackend(zoned, setting)
    yield backend
    backend.close()


def put(backend: RbdBackend, name: str, where: TopologyRequirement | None, size: int = SIZE, **more: Any) -> Volume:
    return backend.create_volume(volume_request(backend, name, size, topology=where, **more))


def left(cluster: Cluster, other: Cluster, backend: RbdBackend) -> tuple[list[str], list[str]]:
    """Return all that is in either pool once the background has nothing left to do."""
    assert backend.wait_until_idle(BACKGROUND_SECONDS)
    namespace = backend.config.namespace
    return cluster.everything(namespace), other.everything(namespace)


def test_a_volume_is_in_the_pool_that_the_nodes_of_its_topology_reach(
    cluster: Cluster, other: Cluster, backend: RbdBackend
) -> None:
    first, second, third = put(backend, "v", IN_A), put(backend, "w", IN_B), put(backend, "x", None)

    assert [(one.handle, one.topology) for one in (first, second, third)] == [
        ("v", (A,)),
        (f"{OTHER}/w", (B,)),
        ("x", (A,)),
    ]
    assert left(cluster, other, backend) == (
        [f"image {image(backend, first)}", f"image {image(backend, third)}"],
        [f"image {image(backend, second)}"],
    )
    assert [backend.get_volume(one.handle) for one in (first, second)] == [first, second]
    assert backend.find_volume("w") == second
    with pytest.raises(NotFound):
        backend.get_volume("w")
    with pytest.raises(NotFound):
        backend.get_volume("no-such-pool/w")


def test_copies_stay_in_the_pool_of_their_source_and_live_as_all_others_do(
    cluster: Cluster, other: Cluster, backend: RbdBackend
) -> None:
    volume = put(backend, "v", IN_B)
    write(cluster, backend, volume, b"first")
    cut, clone = snapshot(backend, "s", volume), copy(backend, "c", volume)
    restored = copy(backend, "r", cut)

    assert [one.handle for one in (cut, clone, restored)] == [f"{OTHER}/{name}" for name in "scr"]
    assert (cut.source, cut.topology) == (volume.handle, (B,))
    assert [read(cluster, backend, one, 5) for one in (cut, clone, restored)] == [b"first"] * 3
    assert expand(backend, restored, 2 * SIZE) == 2 * SIZE
    assert backend.get_snapshot(cut.handle) == backend.find_snapshot("s") == cut
    delete(backend, volume, cut, clone, restored)
    assert left(cluster, other, backend) == ([], [])


@pytest.mark.parametrize("make", [copy, snapshot])
def test_a_copy_is_refused_where_its_topology_or_class_wants_another_pool(
    backend: RbdBackend, make: Callable[..., Volume | Snapshot]
) -> None:
    volume = put(backend, "v", IN_B)
    source = make(backend, "s", volume)
    request = copy_request(backend, "c", source)
    act = backend.clone_volume if isinstance(source, Volume) else backend.restore_volume

    with pytest.raises(ResourceExhausted, match="no requisite topology matches"):
        act(replace(request, topology=IN_A))
    with pytest.raises(InvalidArgument, match=f"the source is in pool '{OTHER}', which the class does not allow"):
        act(copy_request(backend, "c", source, pool=backend.config.pool))


def test_listings_go_through_both_pools_page_by_page(backend: RbdBackend) -> None:
    made = [put(backend, name, where) for name, where in (("v", IN_A), ("w", IN_A), ("v2", IN_B), ("w2", IN_B))]
    cuts = [snapshot(backend, f"s-{number}", one) for number, one in enumerate(made)]

    assert pages(backend.list_volumes, 1) == pages(backend.list_volumes, 3) == made
    assert list(backend.list_volumes(PageRequest()).items) == made
    assert pages(backend.list_snapshots, 2) == cuts
    for one, cut in zip(made, cuts, strict=True):
        assert backend.list_snapshots(PageRequest(), one.handle).items == (cut,)
    assert backend.list_snapshots(PageRequest(), "no-such-pool/v").items == ()
    for cursor in ("no-such-pool/v", f"{OTHER}/{OTHER}/v"):
        with pytest.raises(InvalidToken):
            backend.list_volumes(PageRequest(cursor=cursor))


def pages(read_page: Callable[[PageRequest], Any], limit: int) -> list[Any]:
    found, cursor = [], ""
    while True:
        page = read_page(PageRequest(cursor=cursor, limit=limit))
        assert len(page.items) <= limit
        found += page.items
        if not (cursor := page.cursor):
            return found


def test_a_name_counts_in_all_pools(cluster: Cluster, other: Cluster, backend: RbdBackend) -> None:
    """A request is repeated for another node, after its answer was lost."""
    first = volume_request(backend, "v", topology=IN_B)
    volume = create_volume(backend, first, "b-1")
    fresh = RbdBackend(backend.config, backend.setting)

    assert create_volume(fresh, first, "b-1") == volume
    assert create_volume(fresh, volume_request(backend, "v", topology=ANYWHERE), "a-1") == volume
    with pytest.raises(AlreadyExists, match="not reachable from the requested topology"):
        create_volume(fresh, volume_request(backend, "v", topology=IN_A), "a-1")
    elsewhere = put(fresh, "w", IN_A)
    snapshot(fresh, "s", volume)
    with pytest.raises(AlreadyExists):
        create_snapshot(fresh, volumes.snapshot_request(fresh, "s", elsewhere))
    with pytest.raises(AlreadyExists):
        copy(fresh, "v", elsewhere)
    assert [len([one for one in found if one.startswith("image")]) for found in left(cluster, other, fresh)] == [1, 2]
    fresh.close()


def test_what_is_half_made_in_one_pool_is_removed_before_the_volume_is_made_in_the_other(
    cluster: Cluster, other: Cluster, backend: RbdBackend
) -> None:
    cluster.rbd("create", "--size", "64K", spec(backend, f"{OTHER}/v"))

    volume = put(backend, "v", IN_A)

    assert left(cluster, other, backend) == ([f"image {image(backend, volume)}"], [])


def test_the_next_pool_is_used_where_the_preferred_one_has_no_space(
    cluster: Cluster, other: Cluster, backend: RbdBackend
) -> None:
    other.ceph("osd", "pool", "set-quota", OTHER, "max_bytes", str(64 * MIB))
    try:
        total = backend.capacity(CapacityRequest())
        in_a, in_b = (backend.capacity(CapacityRequest(segments=one)) for one in (A, B))
        preferred = TopologyRequirement(requisite=(A, B), preferred=(B, A))
        small, large = put(backend, "v", preferred), put(backend, "w", preferred, 128 * MIB)
        with pytest.raises(ResourceExhausted, match=f"pool {OTHER}: "):
            put(backend, "x", IN_B, 128 * MIB)
    finally:
        other.ceph("osd", "pool", "set-quota", OTHER, "max_bytes", "0")

    assert (small.topology, large.topology) == ((B,), (A,))
    assert 0 < in_b.available <= 64 * MIB < in_a.available
    assert (total.available, total.maximum) == (in_a.available + in_b.available, in_a.available)
    assert backend.capacity(CapacityRequest(segments={"zone": "c"})).available == 0


def test_a_class_of_ceph_csi_chooses_among_the_pools_that_it_names(backend: RbdBackend) -> None:
    places = [{"poolName": OTHER, "domainSegments": [{"domainLabel": "zone", "value": "b"}]}]
    named = {"topology_constrained_pools": json.dumps(places)}

    assert put(backend, "v", ANYWHERE, **named).handle == f"{OTHER}/v"
    assert put(backend, "w", None, pool=OTHER).handle == f"{OTHER}/w"
    with pytest.raises(ResourceExhausted):
        put(backend, "x", IN_A, **named)


def test_volumes_of_an_instance_that_gets_another_pool_keep_their_handles(
    cluster: Cluster, other: Cluster, config: Config, zoned: Config, setting: Setting
) -> None:
    before = RbdBackend(config, setting)
    volume = create(before, "v")
    cut = snapshot(before, "s", volume)
    before.close()
    backend = RbdBackend(zoned, setting)

    assert backend.get_volume("v").handle == volume.handle
    assert backend.get_snapshot("s").source == cut.source
    assert [one.handle for one in backend.list_volumes(PageRequest()).items] == ["v"]
    delete(backend, volume, cut)
    assert left(cluster, other, backend) == ([], [])
    backend.close()


def test_a_start_and_the_checks_finish_what_was_begun_in_each_pool(
    cluster: Cluster, other: Cluster, backend: RbdBackend
) -> None:
    for where, name in ((IN_A, "v"), (IN_B, "w")):
        volume = put(backend, name, where)
        cluster.rbd("trash", "mv", spec(backend, volume))  # as if it died right then
    started = RbdBackend(backend.config, backend.setting)
    started.resume()
    started.check()

    assert left(cluster, other, started) == ([], [])
    started.close()


def test_an_image_of_either_pool_can_be_imported(cluster: Cluster, backend: RbdBackend) -> None:
    where = f"{OTHER}/{backend.config.namespace}/by-hand"
    cluster.rbd("create", "--size", "16M", where)
    stamp = Stamp(driver=backend.setting.driver, cluster="c", name="v", digest=IMPORTED)
    put(backend, "w", IN_A)
    with pytest.raises(AlreadyExists):
        backend.import_volume(where, replace(stamp, name="w"))

    volume = backend.import_volume(where, stamp)

    assert (volume.handle, volume.topology) == (f"{OTHER}/v", (B,))
    assert backend.release_volume(volume.handle) == f"image {where}"


def test_a_dry_run_shows_the_pool(backend: RbdBackend) -> None:
    report = DryRunReport()
    dry = backend.dry_run(report)
    dry.create_volume(volume_request(backend, "v", topology=IN_B))

    assert any(f"{OTHER}/{backend.config.namespace}/" in word for step in report.steps for word in step.words)
    with pytest.raises(NotFound):
        backend.find_volume("v")


def test_a_driver_answers_with_the_place_of_a_volume_and_of_its_node(zoned: Config, tmp_path: Path) -> None:
    told = {key: value for key, value in msgspec.to_builtins(zoned).items() if key in GIVEN}
    process = DriverProcess(
        tmp_path,
        yaml.safe_dump({"driver": {"name": "d.example", "node": "b-1"}, "backends": {"ceph": {"kind": "rbd", **told}}}),
    )
    client = process.start()
    wanted = {"segments": {"d.example/zone": "b"}}
    capability = {"access_mode": {"mode": 1}, "block": {}}
    request = {"name": "v", "volume_capabilities": [capability], "parameters": {"backend": "ceph"}}

    made = client.CreateVolume(**request, accessibility_requirements={"requisite": [wanted]}).volume
    page = client.ListVolumes(max_entries=1)

    assert made.volume_id == f"ceph/{OTHER}/v"
    assert dict(made.accessible_topology[0].segments) == wanted["segments"]
    assert dict(client.NodeGetInfo().accessible_topology.segments) == wanted["segments"]
    assert [entry.volume.volume_id for entry in page.entries] == [made.volume_id]
    assert client.GetCapacity(accessible_topology=wanted).available_capacity > 0
    assert client.GetCapacity(accessible_topology={"segments": {"d.example/zone": "c"}}).available_capacity == 0
    client.DeleteVolume(volume_id=made.volume_id)
    assert not client.ListVolumes().entries
    client.close()
    assert process.stop() == 0
