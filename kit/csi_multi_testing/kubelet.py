"""Publish a volume on this node as an orchestrator does: attach, stage, publish as a raw block device."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from csi_multi.contract import Capability, Node, Strings, Volume

from . import messages


class NodeAccess(Protocol):
    """What is needed of a CSI client to use a volume on this node."""

    attached: set[tuple[str, str]]  # (handle, node id)

    @property
    def block(self) -> Capability: ...
    def call(self, rpc: str, **fields: Any) -> Any: ...
    def id_of(self, handle: str) -> str: ...
    def get(self, handle: str) -> Volume: ...
    def node(self) -> Node: ...
    def attaches(self) -> bool: ...
    def attach(self, handle: str, node: Node, capability: Capability) -> Strings: ...
    def detach(self, handle: str, node: Node | None) -> None: ...


@contextmanager
def published(client: NodeAccess, handle: str, *, read_only: bool = False) -> Iterator[Path]:
    """Yield a block device with the volume's data; afterwards unpublish, unstage and detach."""
    with ExitStack() as undo:
        staging, target = _paths(undo)
        volume = {"volume_id": client.id_of(handle)}
        about: dict[str, Any] = {
            "staging_target_path": str(staging),
            "volume_capability": messages.capability(client.block),
            "publish_context": _attached(client, handle, undo),
            "volume_context": client.get(handle).stamp.context,
        }
        undo.callback(client.call, "NodeUnstageVolume", **volume, staging_target_path=str(staging))
        client.call("NodeStageVolume", **volume, **about)
        undo.callback(client.call, "NodeUnpublishVolume", **volume, target_path=str(target))
        client.call("NodePublishVolume", **volume, **about, target_path=str(target), readonly=read_only)
        yield target


def _paths(undo: ExitStack) -> tuple[Path, Path]:
    """Return a staging directory and a target path. Only empty directories are removed: a mount may remain."""
    directory = Path(tempfile.mkdtemp(prefix="csi-multi-kit-"))
    staging = directory / "staging"
    staging.mkdir()
    for path in (directory, staging):
        undo.callback(_remove, path)
    return staging, directory / "target"


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def _attached(client: NodeAccess, handle: str, undo: ExitStack) -> Any:
    """Attach to this node if the driver attaches. A volume that was attached before stays attached."""
    if not client.attaches():
        return {}
    node = client.node()
    if (handle, node.id) not in client.attached:
        undo.callback(client.detach, handle, node)
    return client.attach(handle, node, client.block)
