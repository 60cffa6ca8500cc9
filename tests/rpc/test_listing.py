"""Listings go over all instances, page by page, and lose nothing that stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import Health, HealthEntry, Page, PageRequest, Stamp, Volume
from csi_multi.rpc.client import Client

Code = grpc.StatusCode
NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def filled(create: Any) -> list[str]:
    return sorted(create(name, backend=backend).volume_id for backend in ("fast", "slow") for name in NAMES)


@pytest.fixture
def walk(client: Client) -> Callable[..., Iterator[list[str]]]:
    """walk(2) yields the ids of one page of volumes after the other."""

    def pages(limit: int, token: str = "") -> Iterator[list[str]]:
        while True:
            page = client.ListVolumes(max_entries=limit, starting_token=token)
            yield [entry.volume.volume_id for entry in page.entries]
            token = page.next_token
            if not token:
                return

    return pages


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5, 9, 10, 11, 2**31 - 1])
def test_pages_together_are_the_whole_list(limit: int, walk: Any, filled: list[str]) -> None:
    pages = list(walk(limit))

    assert [one for page in pages for one in page] == filled
    assert all(len(page) <= (limit or 10) for page in pages)
    assert all(len(page) == limit for page in pages[:-1])


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_volumes_that_stay_are_listed_once_while_others_come_and_go(
    limit: int, client: Client, walk: Any, filled: list[str], create: Any
) -> None:
    seen: list[str] = []
    for number, page in enumerate(walk(limit)):
        seen += page
        for volume_id in page:  # the cursor's own volume goes too
            client.DeleteVolume(volume_id=volume_id)
        create(f"aa{number}", backend="fast")
        create(f"zz{number}", backend="slow") if number < 3 else None

    assert [one for one in seen if one in filled] == filled
    assert len(seen) == len(set(seen))


def test_listing_beside_creation_and_deletion_never_fails(
    client: Client, walk: Any, filled: list[str], create: Any
) -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            client.DeleteVolume(volume_id=create("churn", backend="fast").volume_id)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for limit in (1, 2, 3) * 5:
            seen = [one for page in walk(limit) for one in page]
            assert [one for one in seen if not one.endswith("churn")] == filled
    finally:
        stop.set()
        thread.join()


BAD_TOKENS = ["invalid-token", "fast", "/a", "absent/a", "FAST/a", "fast/..", "fast/a b", "fast/\n", "\x00", "fast/💾"]


@pytest.mark.parametrize("rpc", ["ListVolumes", "ListSnapshots", "ControllerListVolumeHealth"])
@pytest.mark.parametrize("token", BAD_TOKENS)
def test_a_token_that_was_not_issued_is_aborted(
    rpc: str, token: str, client: Client, filled: Any, refused: Any
) -> None:
    refusal = refused(getattr(client, rpc), starting_token=token)

    assert refusal.code is Code.ABORTED
    assert "start" in refusal.text


def test_a_page_may_end_where_an_instance_ends(client: Client, filled: list[str]) -> None:
    first = client.ListVolumes(max_entries=5)

    assert [entry.volume.volume_id for entry in first.entries] == filled[:5]
    rest = client.ListVolumes(starting_token=first.next_token)
    assert [entry.volume.volume_id for entry in rest.entries] == filled[5:]
    assert not rest.next_token


def test_a_broken_instance_makes_no_complete_list(serve: Any, make: Any, refused: Any) -> None:
    """Leaving volumes out would say that they are gone."""
    refusal = refused(serve(make("fast"), broken={"bad": "no library"}).client.ListVolumes)

    assert refusal.code is Code.UNAVAILABLE
    assert "bad" in refusal.text


class Stuck(MemoryBackend):
    """Lists badly: `page` is what it answers, always."""

    page: Any = Page(items=(), cursor="a")

    def list_volumes(self, page: PageRequest) -> Page[Any]:
        return self.page


def test_a_backend_that_gets_nowhere_is_a_bug_and_no_endless_loop(serve: Any, make: Any, refused: Any) -> None:
    assert refused(serve(make("fast", Stuck)).client.ListVolumes).code is Code.INTERNAL


def test_a_backend_that_ignores_the_limit_is_a_bug(serve: Any, make: Any, creation: Any, refused: Any) -> None:
    served = serve(make("fast", Stuck))
    served.client.CreateVolume(creation("a"))
    one = served.backend("fast").get_volume("a")
    served.backend("fast").page = Page(items=(one, one))

    assert refused(served.client.ListVolumes, max_entries=1).code is Code.INTERNAL


# Snapshots


@pytest.fixture
def snapshots(create: Any, snap: Any) -> list[str]:
    for backend in ("fast", "slow"):
        for volume in ("v", "w"):
            create(volume, backend=backend)
    return sorted(
        snap(f"{volume}-{number}", f"{backend}/{volume}").snapshot_id
        for backend in ("fast", "slow")
        for volume in ("v", "w")
        for number in (1, 2)
    )


def listed(client: Client, **fields: Any) -> list[str]:
    return [entry.snapshot.snapshot_id for entry in client.ListSnapshots(**fields).entries]


def test_snapshots_are_listed_over_all_instances(client: Client, snapshots: list[str]) -> None:
    assert listed(client) == snapshots
    assert len(listed(client, max_entries=3)) == 3


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"snapshot_id": "fast/v-1"}, ["fast/v-1"]),
        ({"source_volume_id": "slow/w"}, ["slow/w-1", "slow/w-2"]),
        ({"snapshot_id": "fast/v-1", "source_volume_id": "fast/v"}, ["fast/v-1"]),
        ({"snapshot_id": "fast/v-1", "source_volume_id": "fast/w"}, []),
        ({"snapshot_id": "fast/v-1", "source_volume_id": "slow/v"}, []),
        ({"snapshot_id": "fast/absent"}, []),
        ({"snapshot_id": "absent/v-1"}, []),
        ({"snapshot_id": "odd"}, []),
        ({"source_volume_id": "fast/absent"}, []),
        ({"source_volume_id": "absent/v"}, []),
        ({"source_volume_id": "odd"}, []),
    ],
)
def test_a_filter_finds_what_fits_and_else_nothing(
    fields: Any, found: list[str], client: Client, snapshots: Any
) -> None:
    assert listed(client, **fields) == found


def test_a_filter_walks_in_pages(client: Client, snapshots: list[str]) -> None:
    page = client.ListSnapshots(source_volume_id="slow/w", max_entries=1)
    rest = client.ListSnapshots(source_volume_id="slow/w", starting_token=page.next_token)

    assert [one.snapshot.snapshot_id for one in (*page.entries, *rest.entries)] == ["slow/w-1", "slow/w-2"]


def test_a_snapshot_of_an_instance_without_snapshots_is_just_not_there(serve: Any, make: Any, everything: Any) -> None:
    from csi_multi.contract.backend import Backend

    names = (
        "create_volume",
        "find_volume",
        "get_volume",
        "delete_volume",
        "open_device",
        "find_device",
        "close_device",
    )
    bare = type("Bare", (Backend,), {name: MemoryBackend.__dict__[name] for name in names} | {"contract": (1, 1)})
    client = serve(make("fast"), make("bare", bare)).client

    assert listed(client, snapshot_id="bare/s") == []
    assert listed(client, source_volume_id="bare/v") == []


def test_a_filter_on_a_healthy_instance_works_beside_a_broken_one(serve: Any, make: Any, creation: Any) -> None:
    client = serve(make("fast"), broken={"bad": "no library"}).client
    client.CreateVolume(creation("v"))
    client.CreateSnapshot(name="s", source_volume_id="fast/v")

    assert listed(client, source_volume_id="fast/v") == ["fast/s"]
    assert listed(client, snapshot_id="fast/s") == ["fast/s"]


def test_members_of_groups_with_long_names_are_listed_in_pages(client: Client, create: Any) -> None:
    create("v", backend="fast")
    create("w", backend="fast")
    client.CreateVolumeGroupSnapshot(name="g" * 43, source_volume_ids=["fast/v", "fast/w"])

    page = client.ListSnapshots(max_entries=1)
    rest = client.ListSnapshots(starting_token=page.next_token)

    assert len(page.entries) == len(rest.entries) == 1


# Health


def test_only_unhealthy_volumes_are_listed(client: Client, both: Any, create: Any) -> None:
    for name in ("v", "w"):
        create(name)
    entry = HealthEntry(status=Health.DEGRADED, reason="MirrorLost", message="one of two copies is gone")
    both.storages["fast"].health["v"] = (entry,)

    (found,) = client.ControllerListVolumeHealth().entries

    assert found.volume_id == "fast/v"
    assert found == client.ControllerGetVolumeHealth(volume_id="fast/v").volume_health
    assert not client.ControllerGetVolumeHealth(volume_id="fast/w").volume_health.health_statuses


def test_an_answer_without_a_wish_for_its_size_still_fits_into_a_message(serve: Any, make: Any) -> None:
    """A client written in Go refuses messages above 4 MiB, and would see no volume at all."""
    served = serve(make("fast"))
    stamp = Stamp(driver="multi.csi.example.com", cluster="default", name="n", digest="x", context={"fsType": "ext4"})
    for number in range(5_003):
        name = f"pvc-{number:039}"
        served.storages["fast"].volumes[name] = Volume(handle=name, size=1 << 30, stamp=stamp)
    first = served.client.ListVolumes()
    rest = served.client.ListVolumes(starting_token=first.next_token)

    assert (len(first.entries), len(rest.entries)) == (5_000, 3)
    assert not rest.next_token
    assert first.ByteSize() < 4 << 20
