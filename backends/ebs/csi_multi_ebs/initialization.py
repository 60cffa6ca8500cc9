"""Waiting until EC2 has loaded a restored volume, where its class asks for that (blockAttachUntilInitialized).

EC2 loads a volume from its snapshot in the background, for minutes to hours, and says how far it is with a delay of
minutes. So an attachment does not wait: it is refused, and tried again by the caller. A tag on the volume says that its
class asks for it, because the class may be gone by then.
"""

from __future__ import annotations

import threading

from csi_multi.contract import Busy

from . import labels
from .batching import Batcher
from .ec2_cache import MAX_VOLUME_IDS, Ec2Cache
from .resources import Ec2Initialization, Ec2Volume

MAX_KNOWN = 5000  # volumes of which this process remembers that they are initialized, which they stay


class InitializationGate:
    """Which volumes may be attached already. Lookups of one moment share a call. Thread-safe."""

    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache
        self._states: Batcher[Ec2Initialization] = Batcher(cache.client.initializations, most=MAX_VOLUME_IDS)
        self._lock = threading.Lock()
        self._initialized: dict[str, None] = {}  # the oldest first

    def require(self, volume: Ec2Volume) -> None:
        """Raise Busy when the volume is to be attached only once it is initialized, and is not yet."""
        if labels.INITIALIZED_FIRST not in volume.tags or volume.id in self._initialized:
            return
        state = self._states.get(volume.id, self._cache.wait_deadline(None))
        if state is None:
            raise Busy(f"EC2 does not show yet whether volume {volume.id!r} is initialized; try again")
        if not state.done:
            raise Busy(
                f"volume {volume.id!r} is still being loaded from its snapshot ({state}), and its class has "
                "'blockAttachUntilInitialized'; it is attached when EC2 has loaded it; try again"
            )
        with self._lock:
            self._initialized[volume.id] = None
            while len(self._initialized) > MAX_KNOWN:
                del self._initialized[next(iter(self._initialized))]
