"""Device names and EBS cards for attachments: which are free on an instance, and which requests of this process use.

EC2's own record of attachments says what is taken. A lookup may be some seconds old, so names that were requested a
moment ago count as taken as well, and their cards as used.
"""

from __future__ import annotations

import string
import threading
import time
from collections import Counter
from dataclasses import dataclass

from csi_multi.contract import ResourceExhausted

from .resources import Ec2Instance

# EC2 accepts /dev/xvdaa to /dev/xvddx, /dev/xvdb to /dev/xvdz and /dev/sdb to /dev/sdz. The last two exclude each other
# on Xen, where an instance has at most 39 volumes, so they come last. No instance has more than 127 beside its root.
WRITABLE = (
    *(f"/dev/xvd{series}{letter}" for series in "bca" for letter in string.ascii_lowercase),
    *(f"/dev/{kind}{letter}" for kind in ("xvd", "sd") for letter in string.ascii_lowercase[1:]),
)
READ_ONLY = tuple(f"/dev/xvdd{letter}" for letter in string.ascii_lowercase[:24])
TAKEN_SECONDS = 60.0  # a name is not reused so soon after a request: by then EC2 shows it as taken
REFUSED_SECONDS = 600.0  # the same for a name that EC2 refused
MAX_INSTANCES = 1000  # instances whose device names are remembered before those of idle ones are dropped


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """Where a volume is attached. `card` is None on an instance with one card, which needs no number."""

    name: str
    card: int | None = None


@dataclass(frozen=True, slots=True)
class _Reservation:
    until: float  # time.monotonic()
    card: int | None


class DeviceNames:
    """The device names of all instances. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved: dict[str, dict[str, _Reservation]] = {}  # by instance and device name

    def reserve(self, instance: Ec2Instance, series: tuple[str, ...], cards: int = 1) -> DeviceSlot:
        """Return a free name that no other call of this process uses, on the card with the fewest volumes.

        Raises ResourceExhausted when no name is free.
        """
        with self._lock:
            now = time.monotonic()
            reserved = {name: one for name, one in self._reserved.get(instance.id, {}).items() if one.until > now}
            free = [name for name in series if name not in instance.devices]
            if not free:
                raise ResourceExhausted(
                    f"all {len(series)} device names of instance {instance.id!r} are in use; "
                    "detach a volume, or use another node"
                )
            device = min(free, key=lambda name: reserved[name].until if name in reserved else 0.0)
            card = _emptiest_card(instance, reserved, cards) if cards > 1 else None
            if len(self._reserved) > MAX_INSTANCES:
                self._reserved = {
                    id: names for id, names in self._reserved.items() if any(one.until > now for one in names.values())
                }
            self._reserved[instance.id] = reserved | {device: _Reservation(now + TAKEN_SECONDS, card)}
            return DeviceSlot(device, card)

    def refused(self, instance: str, device: str) -> None:
        """Do not use a name for a while that EC2 says is taken, although it shows it as free."""
        with self._lock:
            refused = _Reservation(time.monotonic() + REFUSED_SECONDS, None)
            self._reserved.setdefault(instance, {})[device] = refused


def _emptiest_card(instance: Ec2Instance, reserved: dict[str, _Reservation], cards: int) -> int:
    """Return the card with the fewest volumes, shown or requested; of several the first."""
    used = Counter(instance.cards.get(name, 0) for name in instance.devices)
    used.update(one.card for name, one in reserved.items() if one.card is not None and name not in instance.devices)
    return min(range(cards), key=lambda card: used[card])
