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


def gather(
    registry: Registry, feature: type[B], read: Read[T], limit: int, token: str
) -> tuple[list[tuple[Instance, T]], str]:
    """Return up to `limit` (0: all) items after the token, and the token to go on ("" at the end).

    Raises InvalidToken (csi-spec ListVolumes), and Unavailable when an instance is broken: leaving
    its volumes out would tell the orchestrator that they are gone.
    """
    if registry.broken:
        raise Unavailable(f"backends {sorted(registry.broken)} are broken, so no complete list can be given")
    instances = sorted((one for one in registry if isinstance(one.backend, feature)), key=lambda one: one.name)
    start, cursor = ids.split_token(token) if token else ("", "")
    if start and start not in [one.name for one in instances]:
        raise InvalidToken(f"starting_token names backend {start!r}, which lists nothing here; start again")
    rows: list[tuple[Instance, T]] = []
    for instance in [one for one in instances if one.name >= start]:
        position = cursor if instance.name == start else ""
        while True:
            if limit and len(rows) == limit:
                return rows, ids.join(instance.name, position)
            page = read(instance.backend, PageRequest(cursor=position, limit=limit - len(rows) if limit else 0))
            rows += [(instance, item) for item in page.items]
            position = page.cursor
            if not position:
                break
    return rows, ""
