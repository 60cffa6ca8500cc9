"""The labels that were read, by image id, so that a request does not read the same one again.

A label does not change, an image keeps its id, and an id is never used again. So a label counts only together with
what a command has just said about the image: an image that was deleted and created anew under its name has another id.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from .labels import Label

MOST = 20_000  # labels, of about 1.5 KiB each


class LabelCache:
    """The labels used last, and the names that were seen. Thread-safe."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._labels: OrderedDict[str, Label] = OrderedDict()  # by image id, the one used last at the end
        self._names: OrderedDict[str, str] = OrderedDict()  # image id by image name; "": created here, not read yet

    def get(self, name: str, id: str) -> Label | None:
        """Return the label of the image that has this name and id now."""
        with self._lock:
            label = self._labels.get(id)
            if label is None or label.image != name:  # it had another name when the label was read
                return None
            self._labels.move_to_end(id)
            self._note_name(name, id)
            return label

    def seen(self, name: str) -> bool:
        """Return whether an image of this name was complete when it was read or created here."""
        with self._lock:
            return name in self._names

    def put(self, id: str, label: Label) -> None:
        with self._lock:
            self._labels[id] = label
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
