"""Detachments that do not end, as a metric, from the rows that are read for other reasons.

A volume stays `detaching` when the node still uses it (`busy`), or when the instance does not answer. The attacher asks
again and again, and lists all volumes every minute, so there are rows enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from csi_multi.contract import Metric, MetricKind

from .resources import DETACHING_STATES, Ec2Volume

LEAST_SECONDS = 60.0  # a detachment that takes less is not shown
FORGOTTEN_SECONDS = 600.0  # since its last row: another process may work for the controller by now


@dataclass(slots=True)
class _PendingDetach:
    state: str
    since: float  # time.monotonic() of the first row that shows it
    seen: float  # and of the last one

    def seen_again(self, state: str, now: float) -> None:
        self.state, self.seen = state, now


class PendingDetaches:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, dict[str, _PendingDetach]] = {}  # by volume and instance

    def note(self, volumes: Iterable[Ec2Volume]) -> None:
        """Note what these rows show."""
        for one in volumes:
            states = {at.instance: at.state for at in one.attachments if at.state in DETACHING_STATES}
            if states or one.id in self._pending:
                self._replace(one.id, states)

    def metrics(self) -> tuple[Metric, ...]:
        """Return the age of each detachment that takes long, as of its last row."""
        with self._lock:
            self._forget()
            return tuple(
                _metric(volume, instance, one)
                for volume, known in self._pending.items()
                for instance, one in known.items()
                if one.seen - one.since >= LEAST_SECONDS
            )

    def _replace(self, volume: str, states: dict[str, str]) -> None:
        now = time.monotonic()
        with self._lock:
            known = self._pending.pop(volume, {})
            found = {
                instance: known.get(instance) or _PendingDetach(state, now, now) for instance, state in states.items()
            }
            for instance, one in found.items():
                one.seen_again(states[instance], now)
            if found:
                self._pending[volume] = found

    def _forget(self) -> None:
        oldest = time.monotonic() - FORGOTTEN_SECONDS
        self._pending = {
            volume: known
            for volume, known in self._pending.items()
            if any(one.seen >= oldest for one in known.values())
        }


def _metric(volume: str, instance: str, one: _PendingDetach) -> Metric:
    return Metric(
        metric_name="detach_pending_seconds",
        text="For how long EC2 has shown the volume as being detached, as it was last seen.",
        kind=MetricKind.GAUGE,
        value=one.seen - one.since,
        handle=volume,
        labels={"instance_id": instance, "attachment_state": one.state},
    )
