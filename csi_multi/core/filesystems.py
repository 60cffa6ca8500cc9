"""Which filesystem a volume has, in the volume context: what the request names, its source's, otherwise the default.

A snapshot's stamp records the filesystem of its volume. Volumes and snapshots of earlier versions, members of group
snapshots and raw block volumes record none; their copies get AUTO, and the node looks at the device.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from ..contract.backend import Backend
from ..contract.errors import FailedPrecondition, InvalidArgument, NotFound
from ..contract.model import Source, SourceKind

FS_TYPE = "fsType"  # in the volume context, so that a changed default does not affect existing volumes
AUTO = "auto"  # its value where the device decides
CLASS_KEY = "csi.storage.k8s.io/fstype"  # in class parameters
OLD_CLASS_KEY = "fstype"  # in any capitals; the provisioner still reads it where CLASS_KEY is not set


def choose(backend: Backend, source: Source | None, named: Collection[str], default: str) -> str:
    """Return the filesystem of a new volume; `named` are those that the request names, "" for no name.

    Raises InvalidArgument when it names several, or another one than its source has.
    """
    recorded = of_source(backend, source) if source else default
    names = {name for name in named if name} if recorded == AUTO else {name or recorded for name in named}
    if len(all_named := sorted(names or {recorded})) > 1:
        raise InvalidArgument(f"volume_capabilities: a volume has one filesystem, but {all_named} are requested")
    chosen = all_named[0]
    if source and recorded not in (AUTO, chosen):
        raise InvalidArgument(
            f"volume_content_source: {source.kind.value} {source.handle!r} holds {recorded}, and a copy has the "
            f"filesystem of its source, not {chosen}; use a class with {CLASS_KEY}: {recorded}, or without that key"
        )
    return chosen


def of_source(backend: Backend, source: Source) -> str:
    """Return the filesystem that the source records, AUTO when it records none or does not exist any more."""
    with suppress(NotFound, FailedPrecondition):  # the creation itself reports these
        return backend.source_stamp(source).context.get(FS_TYPE) or AUTO
    return AUTO


def snapshot_context(backend: Backend, volume: str) -> dict[str, str]:
    """Return what the stamp of a snapshot records about its volume."""
    recorded = of_source(backend, Source(kind=SourceKind.VOLUME, handle=volume))
    return {} if recorded == AUTO else {FS_TYPE: recorded}
