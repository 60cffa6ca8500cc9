"""Capacity: what can still be created. Volumes take all of their space at once, so that is what is free."""

from __future__ import annotations

from dataclasses import dataclass

from csi_multi.contract import CapacityReport

from .client import BLOCK, Client


@dataclass(frozen=True, slots=True)
class CapacityAccounting:
    client: Client

    def report(self) -> CapacityReport:
        with self.client.connected("reading the capacity"):
            available = self.client.available()
        return CapacityReport(available=available, maximum=available, minimum=BLOCK)
