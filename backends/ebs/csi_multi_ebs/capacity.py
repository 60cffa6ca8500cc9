"""Capacity: what the account's quota for a volume type leaves, after all volumes of that type.

The orchestrator requests the capacity of every class in every zone, again and again, so results are cached. Where
quotas cannot be read no limit is reported: the number helps the scheduler, and must never keep a pod pending.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from functools import partial

from csi_multi.contract import UNLIMITED, CapacityReport, CapacityRequest, Observer, StorageError

from .batching import Batcher
from .caches import TtlCache
from .client import Client
from .config import Config, Parameters
from .ec2_cache import Ec2Cache
from .listing import MAX_PAGE, every_page
from .resources import GIB
from .retries import Retries
from .volume_types import TYPE_LIMITS

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
QUOTA_ATTEMPTS = 2  # attempts to read quotas and usage, which are optional
MAX_QUOTAS = 100  # quotas per page of Service Quotas
QUOTAS_TTL = 3600.0  # seconds for which quotas are cached, and also that they cannot be read
USAGE_TTL = 180.0  # seconds for which the usage is cached

log = logging.getLogger(__name__)


class CapacityClient(Client):
    """Reads quotas and usage, over connections of its own: pages of a whole region must not delay other calls."""

    def __init__(self, config: Config, session_name: str, observe: Observer) -> None:
        super().__init__(config, session_name, observe)
        self._retries = Retries(min(QUOTA_ATTEMPTS, config.max_attempts))

    def quotas(self) -> dict[str, int]:
        """Return the GiB that all volumes of a type may have, by type. A type without a quota is left out."""

        def fetch(token: str) -> tuple[list[tuple[str, float]], str]:
            response = self._call(
                "ListServiceQuotas", ServiceCode=SERVICE, MaxResults=MAX_QUOTAS, NextToken=token or None
            )
            quotas = [(one["QuotaCode"], one["Value"]) for one in response.get("Quotas", ()) if "Value" in one]
            return quotas, response.get("NextToken") or ""

        by_code = dict(every_page(fetch))
        return {kind: int(by_code[code] * TIB) for kind, code in QUOTAS.items() if code in by_code}

    def used(self, kinds: Collection[str]) -> dict[str, int]:
        """Return the GiB of all volumes of the region by type, whoever created them."""
        filters = [{"Name": "volume-type", "Values": list(kinds)}]

        def fetch(token: str) -> tuple[list[tuple[str, int]], str]:
            response = self._call("DescribeVolumes", Filters=filters, MaxResults=MAX_PAGE, NextToken=token or None)
            return [(one["VolumeType"], one["Size"]) for one in response["Volumes"]], response.get("NextToken") or ""

        sums = dict.fromkeys(kinds, 0)
        for kind, size in every_page(fetch):
            sums[kind] += size
        return sums


class CapacityAccounting:
    """The capacity that is left for each volume type. Lookups of one moment share a call. Thread-safe."""

    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache
        setting, self._config = cache.setting, cache.config
        self._client = CapacityClient(self._config, f"{setting.driver}-{setting.instance}", setting.observe)
        self._last_quotas: Mapping[str, int] = {}
        self._log_again = 0.0  # time.monotonic()
        quotas = Batcher(self._read_quotas, most=2)  # one key, so that callers share one call
        self._quotas = TtlCache(lambda: quotas.get(SERVICE, fresh=False) or {}, QUOTAS_TTL)
        used = Batcher(self._client.used, most=len(QUOTAS))
        self._used = {kind: TtlCache(partial(self._read_used, used, kind), USAGE_TTL) for kind in QUOTAS}

    def report(self, request: CapacityRequest) -> CapacityReport:
        """Return what can be created of a volume type in a zone. Segments of other instances do not count."""
        kind, segments = (request.parameters or Parameters()).type, request.segments
        smallest, largest = (size * GIB for size in TYPE_LIMITS[kind].size)
        reachable = not segments or self._cache.zone_named(segments) in self._cache.zones()
        available = self._left(kind) if reachable else 0
        if available < smallest:  # also when it is negative, because a quota was lowered
            available = 0
        return CapacityReport(available=available, maximum=min(available, largest), minimum=smallest)

    def close(self) -> None:
        self._client.close()

    def _left(self, kind: str) -> int:
        quota = self._quotas.get().get(kind) if self._config.capacity == "quotas" else None
        return UNLIMITED if quota is None else (quota - self._used[kind].get()) * GIB

    def _read_used(self, used: Batcher[int], kind: str) -> int:
        return used.get(kind, self._cache.wait_deadline(None), fresh=False) or 0

    def _read_quotas(self, _: Collection[str]) -> dict[str, Mapping[str, int]]:
        """Return the quotas. When they cannot be read, return the last ones, and log the reason once per hour."""
        try:
            self._last_quotas = self._client.quotas()
        except StorageError as error:
            if time.monotonic() >= self._log_again:
                self._log_again = time.monotonic() + QUOTAS_TTL
                log.warning(
                    "backend %s: Service Quotas cannot be read, so %s: %s; allow servicequotas:ListServiceQuotas, or "
                    "set 'capacity: unlimited' to stop reading them",
                    self._cache.setting.instance,
                    "the last known quotas count" if self._last_quotas else "capacity is reported without a limit",
                    error,
                )
        return {SERVICE: self._last_quotas}
