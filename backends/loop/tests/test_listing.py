"""Pages over volumes and snapshots. No root needed."""

import json
import time

import pytest

from csi_multi.contract import CapacityRequest, InvalidToken, PageRequest

MIB = 2**20


def test_pages_hold_everything_once_in_order(backend, requests):
    for name in ("c", "a", "e", "b", "d"):
        backend.create_volume(requests.volume(name))
    pages = list(pages_of(backend.list_volumes, 2))

    assert [[volume.handle[-1] for volume in page.items] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert len(backend.list_volumes(PageRequest()).items) == 5
    assert backend.list_volumes(PageRequest(limit=5)).cursor == ""


def pages_of(listing, limit, **more):
    cursor = ""
    while True:
        page = listing(PageRequest(cursor=cursor, limit=limit), **more)
        yield page
        cursor = page.cursor
        if not cursor:
            return


def test_a_listing_goes_on_while_volumes_come_and_go(backend, requests):
    for name in "acegik":
        backend.create_volume(requests.volume(name))
    seen = []
    for number, page in enumerate(pages_of(backend.list_volumes, 2)):
        seen += [volume.handle[-1] for volume in page.items]
        if number == 0:  # the cursor's own volume goes; others come before and after it
            backend.delete_volume("node-1/c", {})
            for name in "bd":
                backend.create_volume(requests.volume(name))

    assert seen == ["a", "c", "d", "e", "g", "i", "k"]


def test_snapshots_are_listed_by_source(backend, requests):
    for name in ("v", "w"):
        backend.create_volume(requests.volume(name))
        for number in range(3):
            backend.create_snapshot(requests.snapshot(f"{name}{number}", f"node-1/{name}"))
    backend.delete_volume("node-1/w", {})

    pages = list(pages_of(backend.list_snapshots, 2, source="node-1/w"))
    assert [[snapshot.handle[-2:] for snapshot in page.items] for page in pages] == [["w0", "w1"], ["w2"]]
    assert len(backend.list_snapshots(PageRequest()).items) == 6
    assert backend.list_snapshots(PageRequest(), "node-1/none").items == ()
    assert backend.list_snapshots(PageRequest(), "nonsense").items == ()


@pytest.mark.parametrize("cursor", ["../x", "A", "x/y", ".new-a", "a" * 44, "-"])
def test_a_foreign_cursor_is_refused(backend, cursor):
    for listing in (backend.list_volumes, backend.list_snapshots, lambda page: backend.list_volume_health(page, {})):
        with pytest.raises(InvalidToken, match="from the start"):
            listing(PageRequest(cursor=cursor))


def test_an_empty_instance_lists_nothing(backend):
    assert backend.list_volumes(PageRequest()).items == backend.list_snapshots(PageRequest()).items == ()


@pytest.mark.slow
def test_ten_thousand_volumes_cost_the_same_page_after_page(backend, connect, requests, tmp_path, capsys):
    backend.create_volume(requests.volume("v"))
    volumes = tmp_path / "pool/volumes"
    text = json.loads((volumes / "v/volume.json").read_text())
    for number in range(10_000):
        entry = volumes / f"pvc-{number:05}"
        entry.mkdir()
        (entry / "volume.json").write_text(json.dumps(text | {"family": f"{number}", "size": MIB}))
        with (entry / "image").open("wb") as file:
            file.truncate(MIB)
    fresh = connect(overprovision=1000)
    costs = []
    started = time.monotonic()
    for page in pages_of(fresh.list_volumes, 100):
        costs.append((time.monotonic() - started) * 1000)
        assert len(page.items) in (1, 100)
        started = time.monotonic()
    timed = {}
    for name, action in {
        "first capacity": lambda: fresh.capacity(CapacityRequest()),
        "next capacity": lambda: fresh.capacity(CapacityRequest()),
        "create": lambda: fresh.create_volume(requests.volume("w")),
        "health listing": lambda: fresh.list_volume_health(PageRequest(limit=100), {}),
        "resume": fresh.resume,
    }.items():
        started = time.monotonic()
        action()
        timed[name] = round((time.monotonic() - started) * 1000, 1)
    with capsys.disabled():
        print(f"\n10,000 volumes: page of 100: first {costs[0]:.1f} ms, last {costs[-2]:.1f} ms; ms: {timed}")

    assert max(costs) < 500
