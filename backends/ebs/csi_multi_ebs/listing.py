"""Listings, and EC2's describes in bulk: by id, page by page, with escaped filters.

EC2's page tokens are longer than CSI allows and expire within a day. So the CSI cursors are ids: the ids of a
listing are fetched together, a thousand per call, and kept for a minute for the pages that follow. What is on
a page is looked up again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from csi_multi.contract import InvalidArgument, InvalidToken, NotFound, Page, PageRequest, paged

from .resources import Ec2Snapshot, Ec2Volume

MAX_PAGE = 1000  # items per page that EC2 gives
MIN_PAGE = 5  # items per page that EC2 accepts as a limit
IDS_TTL = 60.0  # seconds for which the ids of a listing serve its later pages

_ID = re.compile(r"[a-z]+-[0-9a-f]{8,17}")
_WILDCARD = re.compile(r"([*?\\])")


class Identified(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=Identified)
Resource = TypeVar("Resource", Ec2Volume, Ec2Snapshot)
T = TypeVar("T")


class Listing(Generic[Resource]):
    """All volumes, or all snapshots, of an instance. `fetch_page` fetches one of EC2's pages, `load` looks ids up."""

    def __init__(
        self,
        fetch_page: Callable[[str], tuple[list[Resource], str]],
        load: Callable[[list[str]], dict[str, Resource]],
    ) -> None:
        self._fetch_page: Callable[[str], tuple[list[Resource], str]] = fetch_page
        self._load: Callable[[list[str]], dict[str, Resource]] = load
        self._lock = threading.Lock()
        self._ids: list[str] = []
        self._expires = 0.0  # time.monotonic()

    def page(
        self, request: PageRequest, converter: Callable[[dict[str, Resource]], Callable[[str], T | None]]
    ) -> Page[T]:
        """Return one page. `converter(found)` returns what turns an id into an item; None leaves the id out."""
        with self._lock:
            ids = self._ids if time.monotonic() < self._expires else []
        if not request.cursor or not ids:
            found = self._fetch_all()
            return paged(sorted(found), request, converter(found))
        remaining = [one for one in ids if one > request.cursor]
        window = remaining[: request.limit + 1] if request.limit else remaining
        page = paged(window, request, converter(self._load(window)))
        more = len(remaining) > len(window)
        if more and not page.cursor:
            return Page(items=page.items, cursor=window[-1])
        return page

    def _fetch_all(self) -> dict[str, Resource]:
        found = {one.id: one for one in every_page(self._fetch_page)}
        with self._lock:
            self._ids, self._expires = sorted(found), time.monotonic() + IDS_TTL
        return found


def every_page(fetch: Callable[[str], tuple[list[T], str]]) -> list[T]:
    """Return the items of all pages. `fetch` takes EC2's page token and returns items and the next token."""
    items, token = fetch("")
    while token:
        more, token = fetch(token)
        items += more
    return items


def one_page(fetch: Callable[[int, str], tuple[list[Item], str]], limit: int, token: str) -> tuple[list[Item], str]:
    """Return at most `limit` items (0: as many as EC2 gives) and the token for what follows. Raises InvalidToken.

    EC2 gives no pages of fewer than 5 items. For a smaller limit the returned token is EC2's token of the page,
    followed by the ids of it that were returned already: the page is fetched again and these ids are left
    out. So an item that is deleted in between hides no other.
    """
    ec2_token, *returned = token.split(" ")
    if not all(map(_ID.fullmatch, returned)):
        raise InvalidToken("the listing token was not issued by this driver; start the listing again without a token")
    try:
        items, following = fetch(min(max(limit, MIN_PAGE), MAX_PAGE) if limit else MAX_PAGE, ec2_token)
    except InvalidArgument as error:
        if not ec2_token:
            raise
        raise InvalidToken(str(error)) from None
    fresh = [one for one in items if one.id not in returned]
    if not limit or len(fresh) <= limit:
        return fresh, following
    return fresh[:limit], " ".join([ec2_token, *returned, *(one.id for one in fresh[:limit])])


def existing(
    ids: Collection[str], fetch: Callable[[list[str]], list[T]], search: Callable[[list[str]], list[T]], most: int
) -> list[T]:
    """Return what EC2 shows of these ids, although it refuses a whole call for one id that it does not show.

    Then the ids are searched with a filter, which refuses none. Which ids a message names proves nothing.
    """
    found: list[T] = []
    for some in chunks(ids, most):
        try:
            found += fetch(some)
        except NotFound:
            found += search(some) if len(some) > 1 else []
    return found


def chunks(items: Collection[T], most: int) -> Iterator[list[T]]:
    """Yield the items, without duplicates, in lists of at most `most`."""
    distinct = list(dict.fromkeys(items))
    return (distinct[start : start + most] for start in range(0, len(distinct), most))


def filter_literal(value: str) -> str:
    """Escape what an EC2 filter would take for a wildcard."""
    return _WILDCARD.sub(r"\\\1", value)


def filters(values: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
    """Return filters of EC2: each by its name, for any of its values."""
    return [{"Name": name, "Values": [filter_literal(one) for one in some]} for name, some in values.items()]


def with_shape(shape: re.Pattern[str], ids: Collection[str]) -> list[str]:
    """Return the ids that are well-formed."""
    return [one for one in ids if shape.fullmatch(one)]
