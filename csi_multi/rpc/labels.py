"""Which instance and which object an RPC is about, told from its request alone: for metrics and traces.

So it is known too of an RPC that is refused before any instance is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..contract import ids
from ..contract.errors import NotFound
from ..contract.observer import Rpc

ID_FIELDS = ("volume_id", "snapshot_id", "group_snapshot_id", "source_volume_id", "target_snapshot_id")
ID_LISTS = "source_volume_ids"
PARAMETERS = "parameters"  # of a StorageClass; its `backend` names the instance


class RpcLabels:
    """Tells them. `known` returns the names of all configured instances: no other name is told."""

    def __init__(self, known: Callable[[], Collection[str]], default: Callable[[], str]) -> None:
        self._known = known
        self._default = default

    def of(self, method: str, request: Any, metadata: Any) -> Rpc:
        """Return what is told of an RPC as it begins."""
        fields = request.DESCRIPTOR.fields_by_name
        volume = next((text for name in ID_FIELDS if name in fields and (text := getattr(request, name))), "")
        if not volume and ID_LISTS in fields:
            volume = next(iter(getattr(request, ID_LISTS)), "")
        name = _instance_of(volume) if volume else self._chosen(request) if PARAMETERS in fields else ""
        return Rpc(
            method,
            name if name in self._known() else "",
            volume or (request.name if "name" in fields else ""),
            tuple(metadata or ()),
        )

    def _chosen(self, request: Any) -> str:
        return request.parameters.get("backend", "") or self._default()


def _instance_of(text: str) -> str:
    try:
        return ids.split("volume", text)[0]
    except NotFound:
        return ""
