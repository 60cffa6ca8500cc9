"""Delete volumes and snapshots: what nobody has open, and nobody has cut a snapshot of his own from."""

from __future__ import annotations

from csi_multi.contract import InUse, missing, not_ours_to_delete

from . import names
from .making import Maker
from .purging import Purger
from .rbd import Rbd
from .shelf import Shelf
from .statuses import Torn, Watched

USER = "user"  # namespace of snapshots that somebody made and named


class Remover:
    def __init__(self, maker: Maker, purger: Purger) -> None:
        self._maker = maker
        self._purger = purger

    def remove(self, rbd: Rbd, shelf: Shelf, leaf: str) -> None:
        """Delete it, or what is half-made under its name. Raises NotFound, InUse, FailedPrecondition."""
        try:
            found = shelf.look(rbd, leaf)
        except Torn:  # an earlier try was cut short
            self._maker.prune(rbd, shelf.name(leaf))
            return
        if found is None:
            self._purger.sweep(now=True)  # who died after it had left its name did not say so to anybody
            raise missing(shelf.kind, leaf)
        if found.label is None:
            self._maker.put_away(rbd, shelf, leaf, found)
            return
        if found.label.stamp.imported:
            raise not_ours_to_delete(leaf)
        name = found.image.name
        _refuse_open(rbd, name)
        if found.image.snapshots:
            _uncut(rbd, name)
        try:
            self._purger.discard(rbd, found.image)
        except Watched:
            _refuse_open(rbd, name)
            raise


def _refuse_open(rbd: Rbd, name: str) -> None:
    if watchers := rbd.watchers(name):
        raise InUse(
            f"image {rbd.spec(name)} is open: watched by {', '.join(watchers)}; unpublish and unstage the volume "
            "there. A client that died is forgotten after half a minute"
        )


def _uncut(rbd: Rbd, name: str) -> None:
    """Remove our own snapshots of an image. Raises InUse when there are others."""
    cuts = [cut.name for cut in rbd.snapshots(name) if cut.namespace == USER]
    if theirs := [cut for cut in cuts if cut != names.BASE and not names.is_temporary(cut)]:
        raise InUse(
            f"image {rbd.spec(name)} has snapshots that this driver did not make: {', '.join(theirs)}; "
            "remove them with 'rbd snap rm' if nobody needs them"
        )
    for cut in cuts:
        rbd.uncut(name, cut)
