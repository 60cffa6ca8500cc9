"""One listing over several instances, in the order of their names and page by page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from ..contract import ids
from ..contract.backend import Backend
from ..contract.errors import InvalidToken, Unavailable
from ..contract.model import Page, PageRequest
from ..loading.instance import Instance
from ..loading.registry import Registry

T = TypeVar("T")
B = TypeVar("B", bound=Backend)
M = TypeVar("M", bound=Message)
ReadPage = Callable[[Any, PageRequest], Page[T]]
MakeEntry = Callable[[Instance, T], M]

MAX_ENTRIES = 5000  # per response
MAX_BYTES = 3_500_000  # per response: clients in Go accept messages of at most 4 MiB
ENTRY_OVERHEAD = 8  # bytes around an entry, at most
MAX_EMPTY_PAGES = 100  # in a row


@dataclass(slots=True)
class ListingResponse(Generic[M]):
    """The entries so far, and their total size."""

    limit: int
    entries: list[M] = field(default_factory=list)
    size: int = 0

    def add(self, page: list[M]) -> bool:
        """Add a page; return False when it does not fit."""
        size = sum(entry.ByteSize() + ENTRY_OVERHEAD for entry in page)
        if self.size + size > MAX_BYTES:
            return False
        self.size += size
        self.entries += page
        return True


def list_over_instances(
    registry: Registry,
    feature: type[B],
    read: ReadPage[T],
    make_entry: MakeEntry[T, M],
    limit: int,
    token: str,
    only: str = "",
) -> tuple[list[M], str]:
    """Return up to `limit` (0: any number) entries after the token, and the next token ("" at the end).

    `only` names the one instance to list. Raises InvalidToken (csi-spec ListVolumes), and
    Unavailable when an instance is broken: without its volumes in the list the orchestrator would take
    them for deleted.
    """
    if broken := [name for name in sorted(registry.broken) if only in ("", name)]:
        raise Unavailable(f"no complete list is possible because backends {broken} are broken; see the driver's log")
    listable = (one for one in registry if isinstance(one.backend, feature) and only in ("", one.name))
    instances = sorted(listable, key=lambda one: one.name)
    start, cursor = ids.split_token(token) if token else ("", "")
    if start and start not in [one.name for one in instances]:
        raise InvalidToken(
            f"starting_token names backend {start!r}, which has no listing here; list again from the start"
        )
    response: ListingResponse[M] = ListingResponse(min(limit or MAX_ENTRIES, MAX_ENTRIES))
    for instance in [one for one in instances if one.name >= start]:
        position = _list_instance(response, instance, read, make_entry, cursor if instance.name == start else "")
        if position is not None:
            return response.entries, ids.join(instance.name, position)
    return response.entries, ""


def _list_instance(
    response: ListingResponse[M], instance: Instance, read: ReadPage[T], make_entry: MakeEntry[T, M], position: str
) -> str | None:
    """Add an instance's items; return the cursor to continue from, None when all are added."""
    check, page_limit = ListingCheck(instance, {position}), response.limit
    while len(response.entries) < response.limit:
        requested = min(page_limit, response.limit - len(response.entries))
        page = read(instance.backend, PageRequest(cursor=position, limit=requested))
        if len(page.items) > requested:
            raise check.problem(f"has {len(page.items)} items in a page of at most {requested}")
        if response.add([make_entry(instance, item) for item in page.items]):
            check.add(page)
        elif response.entries:
            return position
        elif requested == 1:
            raise check.problem(f"has an item that does not fit into {MAX_BYTES} bytes")
        else:
            page_limit = requested // 2  # only the end of a page has a cursor, so a smaller page is read
            continue
        if not page.cursor:
            return None
        position = page.cursor
    return position


@dataclass(slots=True)
class ListingCheck:
    """The cursors and handles of one instance in this response; a repetition means that the listing never ends."""

    instance: Instance
    cursors: set[str]
    handles: set[str] = field(default_factory=set)
    empty_pages: int = 0

    def add(self, page: Page[Any]) -> None:
        """Raises InvalidResponse for a repetition."""
        for item in page.items:
            if item.handle in self.handles:
                raise self.problem(f"has {item.handle!r} twice")
            self.handles.add(item.handle)
        if page.cursor and page.cursor in self.cursors:
            raise self.problem(f"repeats cursor {page.cursor!r}")
        self.cursors.add(page.cursor)
        self.empty_pages = 0 if page.items else self.empty_pages + 1
        if self.empty_pages > MAX_EMPTY_PAGES:
            raise self.problem(f"has {self.empty_pages} empty pages in a row")

    def problem(self, text: str) -> Exception:
        return self.instance.proxy.invalid_response("its listing", f" {text}")
