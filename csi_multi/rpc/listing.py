"""One listing over several instances: in the order of their names, page by page, never all at once."""

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

MAX_ENTRIES = 5000  # items per answer
MAX_BYTES = 3_500_000  # per answer: a client in Go takes messages of 4 MiB at most
ENTRY_OVERHEAD = 8  # bytes around an entry, at most
MAX_EMPTY_PAGES = 100  # pages without an item, one after the other


@dataclass(slots=True)
class ListingResponse(Generic[M]):
    """The entries so far, and how much more may come."""

    limit: int
    entries: list[M] = field(default_factory=list)
    size: int = 0

    def takes(self, page: list[M]) -> bool:
        """Add a page if it fits."""
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
    entry: MakeEntry[T, M],
    limit: int,
    token: str,
    only: str = "",
) -> tuple[list[M], str]:
    """Return up to `limit` (0: no wish) entries after the token, and the token to go on ("" at the end).

    `only` names the one instance to look at. Raises InvalidToken (csi-spec ListVolumes), and
    Unavailable when an instance is broken: leaving its volumes out would tell the orchestrator that
    they are gone.
    """
    if broken := [name for name in sorted(registry.broken) if only in ("", name)]:
        raise Unavailable(f"backends {broken} are broken, so no complete list can be given")
    having = (one for one in registry if isinstance(one.backend, feature) and only in ("", one.name))
    instances = sorted(having, key=lambda one: one.name)
    start, cursor = ids.split_token(token) if token else ("", "")
    if start and start not in [one.name for one in instances]:
        raise InvalidToken(f"starting_token names backend {start!r}, which lists nothing here; start again")
    answer: ListingResponse[M] = ListingResponse(min(limit or MAX_ENTRIES, MAX_ENTRIES))
    for instance in [one for one in instances if one.name >= start]:
        position = _fill(answer, instance, read, entry, cursor if instance.name == start else "")
        if position is not None:
            return answer.entries, ids.join(instance.name, position)
    return answer.entries, ""


def _fill(
    answer: ListingResponse[M], instance: Instance, read: ReadPage[T], entry: MakeEntry[T, M], position: str
) -> str | None:
    """Add an instance's items; return the cursor to go on from when not all fit, None at the end."""
    seen, wish = ListingCheck(instance, {position}), answer.limit
    while len(answer.entries) < answer.limit:
        asked = min(wish, answer.limit - len(answer.entries))
        page = read(instance.backend, PageRequest(cursor=position, limit=asked))
        if len(page.items) > asked:
            raise seen.wrong(f"gives {len(page.items)} items when asked for at most {asked}")
        if answer.takes([entry(instance, item) for item in page.items]):
            seen.add(page)
        elif answer.entries:
            return position
        elif asked == 1:
            raise seen.wrong(f"gives an item that does not fit into {MAX_BYTES} bytes")
        else:
            wish = asked // 2  # a page cannot be cut: only its end has a cursor
            continue
        if not page.cursor:
            return None
        position = page.cursor
    return position


@dataclass(slots=True)
class ListingCheck:
    """What one instance has listed in this answer: a listing that gets nowhere would never end."""

    instance: Instance
    cursors: set[str]
    handles: set[str] = field(default_factory=set)
    empty: int = 0

    def add(self, page: Page[Any]) -> None:
        for item in page.items:
            if item.handle in self.handles:
                raise self.wrong(f"gives {item.handle!r} twice")
            self.handles.add(item.handle)
        if page.cursor and page.cursor in self.cursors:
            raise self.wrong(f"repeats cursor {page.cursor!r}")
        self.cursors.add(page.cursor)
        self.empty = 0 if page.items else self.empty + 1
        if self.empty > MAX_EMPTY_PAGES:
            raise self.wrong(f"gives {self.empty} empty pages in a row")

    def wrong(self, text: str) -> Exception:
        return self.instance.guard.wrong("its listing", f" {text}")
