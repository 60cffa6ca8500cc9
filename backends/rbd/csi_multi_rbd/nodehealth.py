"""What is wrong with an image's device, seen from the node that maps it."""

from __future__ import annotations

from csi_multi.contract import Health, HealthEntry, StorageError

from .alone import lost
from .mapped import Mapped
from .rbd import Rbd
from .statuses import Missing


def trouble(rbd: Rbd, image: str, shown: Mapped, *, alone: bool) -> HealthEntry | None:
    """Return what is wrong; None: nothing. `alone`: there is no key to ask the cluster with."""
    device = f"/dev/{shown.disk}"
    if not shown.served:
        mend = "restart the driver on this node within 300 s, which starts another, or "
        return _inaccessible(
            "ProcessGone",
            f"no rbd-nbd serves {device} any more, so all who use it wait: {'' if alone else mend}unpublish and "
            "unstage the volume",
        )
    if alone:
        return None
    try:
        watchers = rbd.watchers(image)
    except Missing:
        return HealthEntry(
            status=Health.DATA_LOSS,
            reason="ImageMissing",
            message=f"{device} shows image {rbd.spec(image)}, which does not exist any more",
        )
    except StorageError as error:
        return _inaccessible("ClusterUnreachable", f"{device}: {error}")
    if lost(watchers, shown):
        return _inaccessible(
            "WatchLost",
            f"the cluster does not know any more that this node ({shown.client or 'rbd-nbd'}) has {rbd.spec(image)} as "
            f"{device}: it was shut out ('ceph osd blocklist ls') or cut off for long, so writes may fail; unpublish "
            "and unstage the volume, and stage it again",
        )
    return None


def _inaccessible(reason: str, message: str) -> HealthEntry:
    return HealthEntry(status=Health.INACCESSIBLE, reason=reason, message=message)
