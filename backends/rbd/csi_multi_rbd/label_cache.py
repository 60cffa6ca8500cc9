"""The labels that were read, by image id, so that a request does not read the same one again.

The driver does not change a label, an image keeps its id, and an id is never used again. So a label counts only
together with what a command has just said about the image: an image that was deleted and created anew under its name
has another id. A person can change a label, and another process can release and import an image again: so labels count
for a while only, and never where something is deleted or formatted (OwnedImages.find_anew, get_metadata).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from .labels import Label

MOST = 20_000  # labels, of about 1.5 KiB each
# Seconds for which a label counts after it was read. A provisioner's requests about one volume follow each other within
# that time, and a person who changes a label sees the effect before starting to search for the reason.
MAX_SECONDS = 300.0
# The same for listings, which only show: the external-health-monitor lists all volumes every five minutes, and to read
# 10,000 labels each time would take more than one processor.
LISTED_SECONDS = 3600.0


class LabelCache:
    """The labels used last, and the names that were seen. Thread-safe."""

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        # by image id, the one used last at the end: when it was read
        self._labels: OrderedDict[str, tuple[float, Label]] = OrderedDict()
        self._names: OrderedDict[str, str] = OrderedDict()  # image id by image name; "": created here, not read yet

    def get(self, name: str, id: str, seconds: float = MAX_SECONDS) -> Label | None:
        """Return the label of the image that has this name and id now, if it was read so many seconds ago at most."""
        with self._lock:
            read, label = self._labels.get(id, (0.0, None))
            if label is None or label.image != name:  # it had another name when the label was read
                return None
            if self._clock() - read >= seconds:
                return None
            self._labels.move_to_end(id)
            self._note_name(name, id)
            return label

    def seen(self, name: str) -> bool:
        """Return whether an image of this name was complete when it was read or created here."""
        with self._lock:
            return name in self._names

    def put(self, id: str, label: Label) -> None:
        """Keep a label that was read just now."""
        with self._lock:
            self._labels[id] = (self._clock(), label)
            self._labels.move_to_end(id)
            self._note_name(label.image, id)
            while len(self._labels) > self._most:
                self._labels.popitem(last=False)

    def note_created(self, name: str) -> None:
        """Note the name of an image whose id is not known, since creating it does not say that."""
        with self._lock:
            self._note_name(name, "")

    def forget(self, name: str) -> None:
        """Forget an image that is not there any more, or not complete."""
        with self._lock:
            self._labels.pop(self._names.pop(name, ""), None)

    def _note_name(self, name: str, id: str) -> None:
        self._names[name] = id
        self._names.move_to_end(name)
        while len(self._names) > self._most:
            self._names.popitem(last=False)
