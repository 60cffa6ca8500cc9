"""Questions about many things at once: by id without poison, in pages, and escaped for EC2's filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Protocol, TypeVar

from csi_multi.contract import InvalidArgument, InvalidToken, NotFound

MOST = 1000  # rows per page that EC2 gives
LEAST = 5  # rows per page that EC2 can be asked for

_ID = re.compile(r"[a-z]+-[0-9a-f]{8,17}")
_WILD = re.compile(r"([*?\\])")


class Row(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=Row)
T = TypeVar("T")


def chunks(items: Collection[T], most: int) -> Iterator[list[T]]:
    """Yield the items, without repeats, in lists of at most `most`."""
    each = list(dict.fromkeys(items))
    return (each[start : start + most] for start in range(0, len(each), most))


def existing(ids: Collection[str], fetch: Callable[[list[str]], list[T]], most: int) -> list[T]:
    """Return what exists of these ids, although EC2 refuses the whole call for one that does not.

    Its message names those that are missing: they are left out and the rest is asked again. A message
    that names none of them is narrowed down by halves.
    """
    found: list[T] = []
    todo = list(chunks(ids, most))
    while todo:
        some = todo.pop()
        try:
            found += fetch(some)
        except NotFound as error:
            named = set(_ID.findall(str(error)))
            rest = [one for one in some if one not in named]
            if len(rest) == len(some):
                todo += chunks(some, -(-len(some) // 2)) if len(some) > 1 else ()
            elif rest:
                todo.append(rest)
    return found


def literal(value: str) -> str:
    """Escape what a filter would take for a wildcard."""
    return _WILD.sub(r"\\\1", value)


def every(fetch: Callable[[str], tuple[list[T], str]]) -> list[T]:
    """Return the rows of all pages. `fetch` takes EC2's token and returns rows and the next token."""
    rows, token = fetch("")
    while token:
        more, token = fetch(token)
        rows += more
    return rows


def page(fetch: Callable[[int, str], tuple[list[R], str]], limit: int, token: str) -> tuple[list[R], str]:
    """Return at most `limit` rows (0: as many as EC2 gives) and the token for what follows.

    EC2 gives no pages of fewer than 5 rows. For a smaller limit our token is EC2's token for the page
    with the ids already shown of it behind: that page is asked for again and they are left out, so that
    a row that has gone in between makes no other disappear. Raises InvalidToken.
    """
    theirs, *shown = token.split(" ")
    if not all(map(_ID.fullmatch, shown)):
        raise InvalidToken("the listing token is not one of this driver")
    try:
        rows, following = fetch(min(max(limit, LEAST), MOST) if limit else MOST, theirs)
    except InvalidArgument as error:
        if not theirs:
            raise
        raise InvalidToken(str(error)) from None
    fresh = [row for row in rows if row.id not in shown]
    if not limit or len(fresh) <= limit:
        return fresh, following
    return fresh[:limit], " ".join([theirs, *shown, *(row.id for row in fresh[:limit])])
