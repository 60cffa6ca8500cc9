"""Make volumes larger, in use or not: a node's kernel, or its rbd-nbd, hears of it by itself."""

from __future__ import annotations

from csi_multi.contract import SizeRange

from .config import Config
from .rbd import Rbd
from .shelf import Shelf
from .space import Space, sized


def grow(rbd: Rbd, shelf: Shelf, leaf: str, wanted: SizeRange, config: Config, space: Space) -> int:
    """Return the size it has then. Raises NotFound, OutOfRange, ResourceExhausted."""
    found, _ = shelf.get(rbd, leaf)
    if wanted.holds(found.image.size):  # whatever the instance allows by now
        return found.image.size
    size = sized(wanted, config, least=found.image.size)
    space.admit(size - found.image.size, found.image.data_pool or config.pool)
    rbd.resize(found.image.name, size)
    return size
