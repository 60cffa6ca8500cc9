"""Which instance and object an RPC is about, read from its request alone: for metrics and traces.

So an RPC that is refused before any instance is called has its labels too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ..contract import ids
from ..contract.errors import NotFound
from ..contract.observer import Rpc

ID_FIELDS = ("volume_id", "snapshot_id", "group_snapshot_id", "source_volume_id", "target_snapshot_id")
ID_LIST = "source_volume_ids"
PARAMETERS = "parameters"  # of a StorageClass; its key `backend` names the instance


class RpcLabels:
    """Reads the labels. `instances` returns the configured names: no other name becomes a label."""

    def __init__(self, instances: Callable[[], Collection[str]], default: Callable[[], str]) -> None:
        self._instances = instances
        self._default = default

    def of_request(self, method: str, request: Any, metadata: Any) -> Rpc:
        """Return what the listeners learn about an RPC when it begins."""
        fields = request.DESCRIPTOR.fields_by_name
        object_id = next((text for name in ID_FIELDS if name in fields and (text := getattr(request, name))), "")
        if not object_id and ID_LIST in fields:
            object_id = next(iter(getattr(request, ID_LIST)), "")
        name = _instance_of(object_id) if object_id else self._chosen_instance(request) if PARAMETERS in fields else ""
        return Rpc(
            method,
            name if name in self._instances() else "",
            object_id or (request.name if "name" in fields else ""),
            tuple(metadata or ()),
        )

    def _chosen_instance(self, request: Any) -> str:
        return request.parameters.get("backend", "") or self._default()


def _instance_of(object_id: str) -> str:
    try:
        return ids.split("volume", object_id)[0]
    except NotFound:
        return ""
