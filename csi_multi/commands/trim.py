"""`csi-multi trim VOLUME`: gives the unused blocks of a volume that is mounted on this node back to its storage."""

from __future__ import annotations

import sys

from ..contract.errors import StorageError
from ..host.command import LocalHost
from ..logs.handlers import ESCAPES
from ..node import device_records, trim


def trim_volume(volume: str) -> int:
    """Trim it now, whatever its class says; return 1 when it is not here, or cannot be trimmed."""
    try:
        found = [record for record in device_records.of_id(volume) if record.current]
        if not found:
            print(
                f"csi-multi: volume {volume!r} is not open on this node; run this where its pod runs", file=sys.stderr
            )
            return 1
        freed = sum(trim.trim(LocalHost(), record) for record in found)
    except (StorageError, OSError) as error:
        print(f"csi-multi: {error}".translate(ESCAPES), file=sys.stderr)
        return 1
    print(f"volume {volume}: {freed} bytes were given back to the storage".translate(ESCAPES))
    return 0
