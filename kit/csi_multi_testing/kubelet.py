"""A volume on this node, as an orchestrator gets it there: attached, staged, published as a raw block device."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import messages

if TYPE_CHECKING:
    from .csi_wire import CsiWire


@contextmanager
def published(door: CsiWire, handle: str, *, read_only: bool = False) -> Iterator[Path]:
    """Yield a block device with the volume's bytes, and undo all that led to it."""
    with ExitStack() as undo:
        staging, target = _paths(undo)
        volume = {"volume_id": door.id_of(handle)}
        about: dict[str, Any] = {
            "staging_target_path": str(staging),
            "volume_capability": messages.capability(door.block),
            "publish_context": _attached(door, handle, undo),
            "volume_context": door.get(handle).stamp.context,
        }
        undo.callback(door.call, "NodeUnstageVolume", **volume, staging_target_path=str(staging))
        door.call("NodeStageVolume", **volume, **about)
        undo.callback(door.call, "NodeUnpublishVolume", **volume, target_path=str(target))
        door.call("NodePublishVolume", **volume, **about, target_path=str(target), readonly=read_only)
        yield target


def _paths(undo: ExitStack) -> tuple[Path, Path]:
    """Return a staging directory and a target. Only empty directories are removed: a mount may be left."""
    directory = Path(tempfile.mkdtemp(prefix="csi-multi-kit-"))
    staging = directory / "staging"
    staging.mkdir()
    for path in (directory, staging):
        undo.callback(_remove, path)
    return staging, directory / "target"


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def _attached(door: CsiWire, handle: str, undo: ExitStack) -> Any:
    """Attach to this node where the driver attaches; a volume that is attached here already stays so."""
    if not door.attaches():
        return {}
    node = door.node()
    if (handle, node.id) not in door.attached:
        undo.callback(door.detach, handle, node)
    return door.attach(handle, node, door.block)
