"""The metrics of a process, put together: what was counted, what is now, what was surveyed, behind one port."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from ..loading.registry import Registry
from ..loading.reload import ConfigReloader
from ..rpc.interceptor import SharedRpcState
from .http import Page
from .metrics import Metrics
from .state import State
from .survey import Surveys

log = logging.getLogger(__name__)


class Board:
    """Listens as soon as it is made."""

    def __init__(self, address: str, survey_seconds: int) -> None:
        """`survey_seconds` between two surveys, 0: none. Raises EndpointError."""
        self._every = survey_seconds
        self._surveys = Surveys()
        self._shown = CollectorRegistry(auto_describe=False)
        self.metrics = Metrics(self._shown)
        ProcessCollector(registry=self._shown)
        self.page = Page(address, self._text)

    def serving(self, traffic: SharedRpcState, registry: Registry, reload: ConfigReloader) -> None:
        self._shown.register(State(traffic, registry, self._surveys, reload))
        if self._every:
            self._surveys.start(registry, self._every)
        self.page.ready = True
        log.info("metrics are shown", extra={"fields": {"address": self.page.address}})

    def stopping(self) -> None:
        self.page.ready = False
        self._surveys.stop()

    def close(self) -> None:
        self.page.close()

    def _text(self, accepted: str) -> tuple[bytes, str]:
        encode, kind = choose_encoder(accepted)
        return encode(self._shown), kind
