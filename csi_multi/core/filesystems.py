"""What a volume has from its source, in the volume context: its filesystem, and whether it is encrypted.

The filesystem is what the request names, its source's, otherwise the default. A snapshot's stamp records both of its
volume. Volumes and snapshots of earlier versions, members of group snapshots and raw block volumes record none; their
copies get AUTO, and the node looks at the device.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from ..contract.backend import Backend
from ..contract.errors import FailedPrecondition, InvalidArgument, NotFound
from ..contract.model import Source, SourceKind, Strings
from ..node import encryption_options
from ..node.encryption_options import EncryptionOptions

FS_TYPE = "fsType"  # in the volume context, so that a changed default does not affect existing volumes
AUTO = "auto"  # its value where the device decides
CLASS_KEY = "csi.storage.k8s.io/fstype"  # in class parameters
OLD_CLASS_KEY = "fstype"  # in any capitals; the provisioner still reads it where CLASS_KEY is not set


def choose(source: Source | None, context: Strings | None, named: Collection[str], default: str) -> str:
    """Return the filesystem of a new volume; `named` are those that the request names, "" for no name.

    `context` is that of the source, None when it is not known. Raises InvalidArgument when several are named, or
    another one than the source has.
    """
    recorded = ((context or {}).get(FS_TYPE) or AUTO) if source else default
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


def source_context(backend: Backend, source: Source) -> Strings | None:
    """Return the context that the source records, None when it does not exist any more."""
    with suppress(NotFound, FailedPrecondition):  # the creation itself reports these
        return backend.source_stamp(source).context
    return None


def volume_context(backend: Backend, volume: str) -> Strings:
    """Return the context of a volume, {} when it does not exist any more."""
    return source_context(backend, Source(kind=SourceKind.VOLUME, handle=volume)) or {}


def snapshot_context(backend: Backend, volume: str) -> dict[str, str]:
    """Return what the stamp of a snapshot records about its volume."""
    context = volume_context(backend, volume)
    kept = {key: context[key] for key in (FS_TYPE, encryption_options.KEY) if context.get(key)}
    return {key: value for key, value in kept.items() if value != AUTO}


def refuse_other_encryption(source: Source, context: Strings | None, options: EncryptionOptions) -> None:
    """Raise InvalidArgument when a copy would be encrypted and its source is not, or the other way round."""
    if context is None or bool(context.get(encryption_options.KEY)) == options.enabled:
        return
    state, advice = (
        ("not encrypted, so its copy cannot be", "without encryption, and copy the files to an encrypted volume")
        if options.enabled
        else ("encrypted, and its copy holds the same data", "with encryption: luks2, and the same passphrase")
    )
    raise InvalidArgument(
        f"volume_content_source: {source.kind.value} {source.handle!r} is {state}; use a class {advice}"
    )
