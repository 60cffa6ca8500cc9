"""What all work on an instance's volumes needs: its configuration, LVM, and what was seen of the group."""

from __future__ import annotations

from csi_multi.contract import StorageError

from . import space
from .activation import Activation
from .config import Config
from .layout import Layout
from .lvm import Lvm
from .report import Report
from .seen import Seen
from .shelf import Shelf


class Work:
    def __init__(self, config: Config, lvm: Lvm, seen: Seen, activation: Activation, volumes: Shelf) -> None:
        self._config = config
        self._lvm = lvm
        self._seen = seen
        self._activation = activation
        self._volumes = volumes

    def _admit(self, report: Report, layout: Layout, size: int) -> None:
        """Let so many bytes be made, or raise why not as space.admit does: never by a report that may be old."""
        try:
            space.admit(report, layout, size, self._config)
        except StorageError:
            self._seen.forget()
            space.admit(self._seen.report(), layout, size, self._config)
