"""How much more can be made: of the account's quota for a volume type, what all its volumes there do not use.

The orchestrator asks for every class in every zone, again and again, so answers are believed for a while. Where
quotas cannot be had no limit is known: a figure is a help to the scheduler, and never a reason to hold up a pod.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from functools import partial

from csi_multi.contract import UNLIMITED, CapacityReport, Segments, StorageError

from . import ec2_many
from .account import GIB, Account
from .batching import Batcher
from .ec2 import Ec2
from .kept import Kept
from .types import RULES

# Quotas of the service `ebs` in Service Quotas: storage for all volumes of a type in the region, in TiB.
QUOTAS = {
    "gp2": "L-D18FCD1D",
    "gp3": "L-7A658B76",
    "io1": "L-FD252861",
    "io2": "L-09BD8365",
    "st1": "L-82ACEF56",
    "sc1": "L-17AF77E8",
    "standard": "L-9CF3C2EB",
}
SERVICE = "ebs"
TIB = 1024  # GiB
PAGE = 100  # quotas per page that Service Quotas gives
QUOTAS_LAST = 3600.0  # seconds for which quotas are believed, and also that there are none to be had
USED_LASTS = 180.0  # seconds for which it is believed how much is used

log = logging.getLogger(__name__)


class Figures(Ec2):
    """What capacity alone asks for, with clients of its own: pages of a whole region must not slow down others."""

    def quotas(self) -> dict[str, int]:
        """Return by type how many GiB its volumes may have in all. A type without a quota is left out."""

        def fetch(token: str) -> tuple[list[tuple[str, float]], str]:
            answer = self._call("ListServiceQuotas", ServiceCode=SERVICE, MaxResults=PAGE, NextToken=token or None)
            told = [(one["QuotaCode"], one["Value"]) for one in answer.get("Quotas", ()) if "Value" in one]
            return told, answer.get("NextToken") or ""

        told = dict(ec2_many.every(fetch))
        return {kind: int(told[code] * TIB) for kind, code in QUOTAS.items() if code in told}

    def used(self, kinds: Collection[str]) -> dict[str, int]:
        """Return by type how many GiB there are in the region, whoever made them."""
        wanted = [{"Name": "volume-type", "Values": list(kinds)}]

        def fetch(token: str) -> tuple[list[tuple[str, int]], str]:
            answer = self._call("DescribeVolumes", Filters=wanted, MaxResults=ec2_many.MOST, NextToken=token or None)
            return [(one["VolumeType"], one["Size"]) for one in answer["Volumes"]], answer.get("NextToken") or ""

        sums = dict.fromkeys(kinds, 0)
        for kind, size in ec2_many.every(fetch):
            sums[kind] += size
        return sums


class Room:
    """What is left for each volume type. Those who ask at once ask together; threads may share it."""

    def __init__(self, account: Account) -> None:
        self._account = account
        setting, self._config = account.setting, account.config
        self._figures = Figures(self._config, f"{setting.driver}-{setting.instance}", setting.observe)
        self._known: Mapping[str, int] = {}  # the last quotas that were told
        self._quiet_until = 0.0  # time.monotonic()
        quotas = Batcher(self._quotas_told, most=2)  # one key: those who ask at once ask together
        self._quotas = Kept(lambda: quotas.get(SERVICE) or {}, QUOTAS_LAST)
        used = Batcher(self._figures.used, most=len(QUOTAS))
        self._used = {kind: Kept(partial(self._sum, used, kind), USED_LASTS) for kind in QUOTAS}

    def report(self, kind: str, segments: Segments | None) -> CapacityReport:
        """Return what can be made of a type at a place. Segments of other instances there do not count."""
        smallest, largest = (size * GIB for size in RULES[kind].size)
        reached = not segments or segments.get("zone") in self._account.zones()
        available = self._left(kind) if reached else 0
        if available < smallest:  # also below zero: a quota can be lowered
            available = 0
        return CapacityReport(available=available, maximum=min(available, largest), minimum=smallest)

    def close(self) -> None:
        self._figures.close()

    def _left(self, kind: str) -> int:
        quota = self._quotas.get().get(kind) if self._config.capacity == "quotas" else None
        return UNLIMITED if quota is None else (quota - self._used[kind].get()) * GIB

    def _sum(self, used: Batcher[int], kind: str) -> int:
        return used.get(kind, self._account.ends(None)) or 0

    def _quotas_told(self, _: Collection[str]) -> dict[str, Mapping[str, int]]:
        """Return what quotas there are, or else were, and say why once in a while."""
        try:
            self._known = self._figures.quotas()
        except StorageError as error:
            if time.monotonic() >= self._quiet_until:
                self._quiet_until = time.monotonic() + QUOTAS_LAST
                log.warning(
                    "backend %s: quotas cannot be asked for, so %s: %s; allow servicequotas:ListServiceQuotas, or "
                    "set 'capacity: unlimited' to ask no more",
                    self._account.setting.instance,
                    "those of before count" if self._known else "capacity is told to be without limit",
                    error,
                )
        return {SERVICE: self._known}
