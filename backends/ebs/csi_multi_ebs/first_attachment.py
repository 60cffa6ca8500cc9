"""Which attachment of a volume is its first one: a tag, written before a node can use the attachment.

A volume that was created empty has the tag from its creation, with the value NONE. The first writable attachment is
written into the tag before its publish context is returned, and before that no node can open the device. So a volume
is unused at the beginning of the attachment that its tag names, and of no other; a volume without the tag never is.

EC2 may show an older tag. What this process has written it remembers; and for a while after its first request it does
not trust the value NONE, because another process may have written the tag just before.
"""

from __future__ import annotations

import threading
import time

from csi_multi.contract import StorageError, Unavailable

from . import labels
from .consistency import ConsistencyWindow
from .ec2_cache import Ec2Cache
from .resources import Ec2Attachment, Ec2Volume

# Values of the publish context's key "blank". The node decides by them, see blankness.py.
UNUSED = "unused"  # this is the first attachment
UNKNOWN = "unknown"  # an earlier attachment, or something before the tag, may have written
NEVER = "never"  # a copy or an imported volume

ENDED = "ended"  # in memory only: the first attachment was another one
MAX_KNOWN = 5000  # volumes of which this process remembers the tag that it has written


class FirstAttachments:
    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._window = ConsistencyWindow(cache.config.consistency_seconds)
        self._known: dict[str, str] = {}  # the tag's value by volume: lookups may show an older one

    def contents(
        self, volume: Ec2Volume, attachment: Ec2Attachment, deadline: float, *, new: bool, read_only: bool
    ) -> str:
        """Return what is known of the volume's contents at the beginning of this attachment.

        `new`: this call has made the attachment. A read-only one is no first one: the node writes nothing. Raises
        Unavailable when the tag cannot be written, or is not known for certain at the deadline (time.monotonic()).
        """
        unsettled = self._window.left()
        stamp = self._cache.stamp("volume", volume)
        if stamp.source is not None or volume.snapshot or stamp.imported:
            return NEVER
        first = self._known.get(volume.id) or volume.tags.get(labels.FIRST_ATTACHMENT, "")
        described = attachment.description
        if first == labels.NO_ATTACHMENT and described and not read_only and unsettled > 0:
            first = self._settled_tag(volume.id, deadline)
        if first == labels.NO_ATTACHMENT:
            if described and not read_only:
                self._write(volume.id, described)
                return UNUSED
        elif new:  # not the one that the tag names, even if a late lookup shows that one
            if not volume.multi_attach:
                self._remember(volume.id, ENDED)
        elif described and first == described:
            return UNUSED
        return UNKNOWN

    def end(self, handle: str) -> None:
        """Note that a detachment has begun: whatever a late lookup shows, the next attachment is not the first."""
        if handle in self._known:
            self._remember(handle, ENDED)

    def _settled_tag(self, handle: str, deadline: float) -> str:
        """Wait until EC2 shows what another process wrote before this one took over, and return the tag.

        Raises Unavailable when that is after the deadline.
        """
        left = self._window.left()
        if time.monotonic() + left <= deadline:
            time.sleep(max(0.0, left))
            if volume := self._cache.volumes.get(handle, self._cache.wait_deadline(None)):
                return volume.tags.get(labels.FIRST_ATTACHMENT, "")
        raise Unavailable(
            f"volume {handle!r} is attached, but whether this is its first attachment is not known yet: EC2 may "
            "show late what another process wrote before this one took over; try again"
        )

    def _write(self, handle: str, described: str) -> None:
        try:
            self._cache.client.tag([handle], {labels.FIRST_ATTACHMENT: described})
        except StorageError as error:
            raise Unavailable(
                f"volume {handle!r} is attached, but its tag {labels.FIRST_ATTACHMENT!r} could not be written, without "
                f"which no node may use it: {error}; try again"
            ) from error
        self._remember(handle, described)

    def _remember(self, handle: str, first: str) -> None:
        with self._lock:
            self._known.pop(handle, None)
            self._known[handle] = first
            while len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]
