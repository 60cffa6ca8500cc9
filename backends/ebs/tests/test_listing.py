"""Listings on EBS: EC2's pages, ids as cursors, only the instance's own volumes, and where each is attached."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest
from csi_multi_ebs import listing
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.labels import snapshot_tags, volume_tags
from csi_multi_ebs.listing import chunks, every_page, existing, filter_literal, one_page

from csi_multi.contract import InvalidArgument, InvalidToken, NotFound, PageRequest, Unavailable, Volume

from . import fake_ec2_moto
from .backend_requests import (
    GONE,
    A,
    Connect,
    attach_request,
    backend_config,
    nodes,
    row,
    setting,
    snapshot_request,
    volume_request,
)
from .fake_ec2 import Call, FakeEc2


def many(cloud: FakeEc2, number: int) -> list[str]:
    """Put volumes of ours into EC2 without asking it, and return their ids in order."""
    account = fake_ec2_moto.store(Call("", {}, "123456789012", cloud.region))
    config = backend_config(cloud)
    for count in range(number):
        made = account.create_volume(1, A, volume_type="gp3")
        made.add_tags(volume_tags(volume_request(f"pvc-{count}"), setting(), config))
    return sorted(volume.id for volume in account.volumes.values())


def many_snapshots(cloud: FakeEc2, volume: str, number: int) -> list[str]:
    account = fake_ec2_moto.store(Call("", {}, "123456789012", cloud.region))
    config = backend_config(cloud)
    for count in range(number):
        made = account.create_snapshot(volume, "")
        made.add_tags(snapshot_tags(snapshot_request(f"snap-{count}", volume), setting(), config))
    return sorted(account.snapshots)


def walk(ebs: EbsBackend, limit: int) -> list[list[str]]:
    """Return the ids on each page."""
    pages, cursor = [], ""
    while True:
        page = ebs.list_volumes(PageRequest(cursor=cursor, limit=limit))
        pages.append([one.handle for one in page.items])
        if not (cursor := page.cursor):
            return pages


def test_a_long_listing_uses_ec2s_largest_pages(ebs: EbsBackend, cloud: FakeEc2) -> None:
    ids = many(cloud, 2500)

    pages = walk(ebs, 1000)

    assert [len(page) for page in pages] == [1000, 1000, 500]
    assert [one for page in pages for one in page] == ids
    sizes = [call.get("MaxResults") for call in cloud.seen if "MaxResults" in call.params]
    assert sizes == ["1000"] * 3


def test_later_pages_look_up_what_is_on_them_alone(ebs: EbsBackend, cloud: FakeEc2) -> None:
    ids = many(cloud, 40)
    first = ebs.list_volumes(PageRequest(limit=10))
    cloud.seen.clear()

    ebs.list_volumes(PageRequest(cursor=first.cursor, limit=10))

    (looked,) = cloud.seen
    assert looked.many("VolumeId") == ids[10:21]


def test_without_a_limit_all_is_on_one_page(ebs: EbsBackend, cloud: FakeEc2) -> None:
    ids = many(cloud, 12)

    assert walk(ebs, 0) == [ids]


def test_pages_of_ec2_that_are_empty_end_nothing(ebs: EbsBackend, cloud: FakeEc2) -> None:
    ids = many(cloud, 7)
    cloud.describes.empty_pages = 2

    assert walk(ebs, 0) == [ids]


def test_deletions_between_pages_make_no_other_volume_disappear(ebs: EbsBackend, cloud: FakeEc2) -> None:
    ids = many(cloud, 12)
    first = ebs.list_volumes(PageRequest(limit=4))
    for gone in (ids[3], ids[5], ids[6]):
        ebs.delete_volume(gone, {})

    second = ebs.list_volumes(PageRequest(cursor=first.cursor, limit=4))
    third = ebs.list_volumes(PageRequest(cursor=second.cursor, limit=10))

    assert [one.handle for page in (first, second, third) for one in page.items] == [
        *ids[:5],
        *ids[7:],
    ]


def test_a_page_whose_volumes_are_all_gone_leads_on_to_the_next(ebs: EbsBackend, cloud: FakeEc2) -> None:
    ids = many(cloud, 9)
    first = ebs.list_volumes(PageRequest(limit=3))
    for gone in ids[3:7]:
        ebs.delete_volume(gone, {})

    second = ebs.list_volumes(PageRequest(cursor=first.cursor, limit=3))
    third = ebs.list_volumes(PageRequest(cursor=second.cursor, limit=3))

    assert [one.handle for page in (second, third) for one in page.items] == ids[7:]


def test_a_listing_goes_on_in_another_process_and_after_a_while(
    connect: Connect, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = many(cloud, 8)
    ebs = connect()
    first = ebs.list_volumes(PageRequest(limit=3))
    rest = ids[3:]

    assert [one.handle for one in connect().list_volumes(PageRequest(cursor=first.cursor)).items] == rest
    monkeypatch.setattr(listing, "IDS_TTL", 0.0)
    aged = connect()
    first = aged.list_volumes(PageRequest(limit=3))
    assert [one.handle for one in aged.list_volumes(PageRequest(cursor=first.cursor)).items] == rest


def test_a_foreign_cursor_is_refused(ebs: EbsBackend, cloud: FakeEc2) -> None:
    many(cloud, 2)

    for cursor in ("Vol", "../x", "{}"):
        with pytest.raises(InvalidToken):
            ebs.list_volumes(PageRequest(cursor=cursor, limit=1))
        with pytest.raises(InvalidToken):
            ebs.list_snapshots(PageRequest(cursor=cursor, limit=1))


def test_what_is_not_ours_failed_or_torn_is_not_listed(ebs: EbsBackend, connect: Connect, cloud: FakeEc2) -> None:
    ids = many(cloud, 3)
    connect("other").create_volume(volume_request("theirs"))
    cloud.client().create_volume(AvailabilityZone=A, Size=1)
    cloud.client().delete_tags(Resources=[ids[0]], Tags=[{"Key": "csi-multi/stamp.0"}])
    row(cloud, ids[1]).phase = "error"

    assert walk(ebs, 0) == [ids[2:]]


def test_listed_volumes_name_their_nodes_also_after_a_restart(connect: Connect, cloud: FakeEc2) -> None:
    first, second = nodes(cloud, 2)
    ebs = connect(zones=(A,))
    here, there, nowhere = (ebs.create_volume(volume_request(f"pvc-{number}")) for number in range(3))
    ebs.attach(attach_request(first, here))
    ebs.attach(attach_request(second, there))
    cloud.calls.clear()

    for one in (ebs, connect()):
        found = {volume.handle: volume.published_nodes for volume in one.list_volumes(PageRequest()).items}
        assert found == {here.handle: (first.id,), there.handle: (second.id,), nowhere.handle: ()}
    assert cloud.calls["DescribeInstances"] == 1


def test_a_listed_volume_is_told_as_it_was_made(ebs: EbsBackend, cloud: FakeEc2) -> None:
    made: Volume = ebs.create_volume(volume_request("Ünicode / name"))

    assert ebs.list_volumes(PageRequest()).items == (made,)


# Snapshots.


def test_snapshots_are_listed_in_pages(ebs: EbsBackend, cloud: FakeEc2) -> None:
    volume = ebs.create_volume(volume_request())
    ids = many_snapshots(cloud, volume.handle, 12)
    ebs.delete_volume(volume.handle, {})

    first = ebs.list_snapshots(PageRequest(limit=5))
    second = ebs.list_snapshots(PageRequest(cursor=first.cursor, limit=50))

    assert [one.handle for page in (first, second) for one in page.items] == ids
    assert {one.source for one in first.items} == {volume.handle}


def test_the_snapshots_of_one_volume_are_listed_alone(ebs: EbsBackend, cloud: FakeEc2) -> None:
    one, other = (ebs.create_volume(volume_request(name)) for name in ("pvc-1", "pvc-2"))
    ids = many_snapshots(cloud, one.handle, 8)
    many_snapshots(cloud, other.handle, 2)

    first = ebs.list_snapshots(PageRequest(limit=5), one.handle)
    second = ebs.list_snapshots(PageRequest(cursor=first.cursor, limit=5), one.handle)

    assert [found.handle for page in (first, second) for found in page.items] == ids
    assert ebs.list_snapshots(PageRequest(), GONE).items == ()
    assert ebs.list_snapshots(PageRequest(), "node/x").items == ()


IDS = [f"vol-{number:08x}" for number in range(1200)]


class Store:
    """Has some ids, and refuses a question about others as EC2 does."""

    def __init__(self, has: Collection[str], says: str = "The volumes '{}' do not exist.") -> None:
        self.has = set(has)
        self.says = says
        self.asked: list[list[str]] = []
        self.searched: list[list[str]] = []

    def search(self, ids: list[str]) -> list[str]:
        self.searched.append(ids)
        return [one for one in ids if one in self.has]

    def __call__(self, ids: list[str]) -> list[str]:
        self.asked.append(ids)
        if missing := [one for one in ids if one not in self.has]:
            raise NotFound(self.says.format(", ".join(missing)))
        return ids


def test_what_ec2_does_not_show_is_left_out_and_all_are_searched() -> None:
    store = Store(IDS[:98])

    assert sorted(existing(IDS[:100], store, store.search, 500)) == IDS[:98]
    assert (len(store.asked), store.searched) == (1, [IDS[:100]])


def test_an_error_that_names_every_id_is_no_proof_that_none_exists() -> None:
    store = Store(IDS[:99], says=f"The volumes '{', '.join(IDS[:100])}' do not exist.")

    assert sorted(existing(IDS[:100], store, store.search, 500)) == IDS[:99]


def test_a_single_id_that_is_refused_is_not_searched() -> None:
    store = Store([])

    assert existing(IDS[:1], store, store.search, 500) == []
    assert store.searched == []


def test_no_question_is_about_more_than_the_most() -> None:
    store = Store(IDS)

    assert sorted(existing(IDS, store, store.search, 500)) == IDS
    assert [len(some) for some in store.asked] == [500, 500, 200]


def test_other_trouble_is_not_taken_for_absence() -> None:
    def fail(ids: list[str]) -> list[str]:
        raise Unavailable("EC2 is away")

    with pytest.raises(Unavailable):
        existing(IDS[:2], fail, fail, 500)


def test_an_id_that_is_asked_for_twice_is_sent_once() -> None:
    assert list(chunks(["a", "b", "a"], 500)) == [["a", "b"]]


@pytest.mark.parametrize(("text", "escaped"), [("a*b?", r"a\*b\?"), ("a\\b", r"a\\b"), ("pvc-1/2", "pvc-1/2")])
def test_wildcards_mean_themselves(text: str, escaped: str) -> None:
    assert filter_literal(text) == escaped


@dataclass(frozen=True)
class Row:
    id: str


class Book:
    """Rows in EC2's pages: at least five at a time, with tokens."""

    def __init__(self, number: int) -> None:
        self.rows = [Row(one) for one in IDS[:number]]

    def __call__(self, most: int, token: str) -> tuple[list[Row], str]:
        assert 5 <= most <= 1000
        if token and not token.startswith("after:"):
            raise InvalidArgument("InvalidParameterValue")
        after = token.removeprefix("after:")
        rest = [row for row in self.rows if row.id > after]
        more = len(rest) > most
        return rest[:most], f"after:{rest[most - 1].id}" if more else ""


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 1000, 2000, 0])
def test_pages_of_any_size_show_everything_once(limit: int) -> None:
    book, token, shown = Book(13), "", []
    while True:
        rows, token = one_page(book, limit, token)
        assert len(rows) <= limit or not limit
        shown += rows
        if not token:
            break

    assert shown == book.rows


def test_a_row_that_goes_between_two_pages_makes_no_other_disappear() -> None:
    book = Book(7)
    first, token = one_page(book, 2, "")
    book.rows.remove(first[1])

    second, token = one_page(book, 2, token)
    third, token = one_page(book, 2, token)

    assert [*first, *second, *third] == [Row(one) for one in IDS[:6]]


@pytest.mark.parametrize("token", ["foreign", " foreign", "after:vol-1 x y"])
def test_a_foreign_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidToken):
        one_page(Book(3), 2, token)


def test_a_first_page_that_is_refused_is_no_matter_of_tokens() -> None:
    def refuse(most: int, token: str) -> tuple[list[Row], str]:
        raise InvalidArgument("the filter")

    with pytest.raises(InvalidArgument):
        one_page(refuse, 2, "")


def test_every_page_is_read() -> None:
    book = Book(23)

    assert every_page(lambda token: book(5, token)) == book.rows
