"""One listing over several instances: in the order of their names, page by page, never all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .. import ids
from ..backend import Backend
from ..errors import InvalidToken, Unavailable
from ..model import Page, PageRequest
from ..registry import Instance, Registry

T = TypeVar("T")
B = TypeVar("B", bound=Backend)
Read = Callable[[Any, PageRequest], Page[T]]

MOST = 5000  # items per answer: a client in Go takes messages of 4 MiB at most, and an item may have 600 bytes


def gather(
    registry: Registry, feature: type[B], read: Read[T], limit: int, token: str, only: str = ""
) -> tuple[list[tuple[Instance, T]], str]:
    """Return up to `limit` (0: no wish) items after the token, and the token to go on ("" at the end).

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
    limit = min(limit or MOST, MOST)
    rows: list[tuple[Instance, T]] = []
    for instance in [one for one in instances if one.name >= start]:
        position = cursor if instance.name == start else ""
        while True:
            if len(rows) == limit:
                return rows, ids.join(instance.name, position)
            page = read(instance.backend, PageRequest(cursor=position, limit=limit - len(rows)))
            rows += [(instance, item) for item in page.items]
            if (page.cursor and page.cursor == position) or len(rows) > limit:
                raise RuntimeError(f"backend {instance.name} repeats a page or gives more than it was asked for")
            position = page.cursor
            if not position:
                break
    return rows, ""
