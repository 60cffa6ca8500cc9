"""When volumes are trimmed: each at its own moment of the interval that its class gives, so that they are spread.

A note in /dev says when a volume was trimmed last, also after it was unstaged and staged again. So a moment that passed
while no driver ran is made up for, and a driver that starts does not trim again.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from ..contract.errors import Busy, StorageError
from ..contract.machine import Host
from ..host.device_notes import DeviceNotes
from . import device_records, trim
from .device_records import DeviceRecord

log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0  # between two looks for volumes that are due


def start(host: Host, driver: str) -> None:
    """Trim the volumes of this driver in the background."""
    schedule = TrimSchedule(host, driver)
    threading.Thread(target=schedule.run, name="trim", daemon=True).start()


class TrimSchedule:
    """The volumes of one driver on this node that are to be trimmed."""

    def __init__(self, host: Host, driver: str, now: Callable[[], float] = time.time) -> None:
        self._host = host
        self._driver = driver
        self._now = now

    def run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            self.trim_due()

    def trim_due(self) -> None:
        """Trim what is due, one after the other. What cannot be trimmed is logged, and waits for its next moment."""
        try:
            for record in list(self._due()):
                self._trim(record)
        except Busy:
            log.debug("another process trims; what is due waits")
        except StorageError as error:
            log.warning("no volume is trimmed now, because the notes about them cannot be read or written: %s", error)

    def _due(self) -> Iterator[DeviceRecord]:
        for record in device_records.of_driver(self._driver):
            if record.trim and record.current and self._moment(record) > self._last(record):
                yield record

    def _moment(self, record: DeviceRecord) -> float:
        """Return the last moment that was the volume's."""
        own = int.from_bytes(hashlib.sha256(str(record.key).encode()).digest()[:8]) % record.trim
        now = self._now()
        return now - (now - own) % record.trim

    def _last(self, record: DeviceRecord) -> float:
        """Return when the volume was trimmed last; one that this node sees for the first time counts as trimmed now."""
        note = DeviceNotes(trim.NOTES).read(_name(record))
        if not note:
            self._note(record)
            return self._now()
        return float(note.get("at", 0))

    def _note(self, record: DeviceRecord) -> None:
        DeviceNotes(trim.NOTES).write(_name(record), {"volume": str(record.key), "at": str(self._now())})

    def _trim(self, record: DeviceRecord) -> None:
        """Raises Busy."""
        began = time.monotonic()
        try:
            freed = trim.trim(self._host, record)
        except Busy:
            raise
        except (StorageError, OSError) as error:
            log.warning("volume %s could not be trimmed: %s", record.key.volume, error)
        else:
            fields = {"volume": record.key.volume, "bytes": freed, "ms": round((time.monotonic() - began) * 1000)}
            log.info("a volume was trimmed", extra={"fields": fields})
        self._note(record)


def _name(record: DeviceRecord) -> str:
    """Return the name of a volume's note."""
    return hashlib.sha256(str(record.key).encode()).hexdigest()[:32]
