"""Pages over volumes and snapshots. No root needed."""

import os

import pytest
from csi_multi_loop.client import Client

from csi_multi.contract import InvalidToken, PageRequest


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


def test_a_page_reads_its_own_labels_and_the_directory_is_read_once(backend, requests, monkeypatch):
    for number in range(40):
        backend.create_volume(requests.volume(f"v{number:02}"))
    labels, directories = [], []
    read, read_directory = Client.read, os.listdir
    monkeypatch.setattr(Client, "read", lambda self, file: labels.append(file) or read(self, file))
    monkeypatch.setattr(os, "listdir", lambda path: directories.append(path) or read_directory(path))
    pages = []
    for page in pages_of(backend.list_volumes, 8):
        pages.append(len(page.items))
        of_volumes = [file for file in labels if file.name == "volume.json"]
        assert len(of_volumes) <= 9  # one more shows whether there is another page
        del labels[:]

    assert pages == [8] * 5
    assert len(directories) == 1
