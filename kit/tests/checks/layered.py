"""A correct backend in memory whose volumes consist of layers, which tests break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from csi_multi_testing import memory
from csi_multi_testing.memory import MemoryBackend, MemoryStorage, T
from csi_multi_testing.storage import Storage


@dataclass
class LayeredStorage(MemoryStorage):
    """A snapshot gets the old layer of its source, which gets a new one; merged into the next with the snapshot."""

    layers: dict[str, tuple[str, str]] = field(default_factory=dict)  # by name: volume, and snapshot or ""

    def put(self, rows: dict[str, T], key: str, row: T) -> None:
        new = key not in rows
        super().put(rows, key, row)
        if new and rows is self.volumes:
            self.add(key)
        elif new and rows is self.snapshots:
            source = self.snapshots[key].source
            for name in [name for name, owner in self.layers.items() if owner == (source, "")]:
                self.layers[name] = (source, key)
            self.add(source)

    def add(self, volume: str) -> None:
        """Add the layer that is written from now on."""
        count = vars(self)["count"] = vars(self).get("count", 0) + 1
        self.layers[f"{volume}.{count}"] = (volume, "")

    def drop(self, rows: dict[str, T], key: str) -> None:
        super().drop(rows, key)
        if rows is self.volumes:
            self.remove(lambda volume, snapshot: (volume, snapshot) == (key, ""))
        elif rows is self.snapshots:
            self.merge(key)

    def merge(self, snapshot: str) -> None:
        """Remove the layer of a snapshot."""
        self.remove(lambda _, owner: owner == snapshot)

    def remove(self, condition: Callable[[str, str], bool]) -> None:
        self.layers = {name: owner for name, owner in self.layers.items() if not condition(*owner)}

    def names(self) -> list[str]:
        return super().names() + [f"layer {name}" for name in self.layers]


def layered(rows: type[LayeredStorage] = LayeredStorage, kind: type[MemoryBackend] = MemoryBackend) -> Any:
    """Return what makes a storage of this kind."""

    def storage() -> Storage:
        return memory.storage(kind, rows=rows, layers=True)

    storage.__name__ = rows.__name__ if kind is MemoryBackend else kind.__name__
    return storage
