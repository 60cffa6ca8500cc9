"""The metrics of a process on one port: counted calls, present state, and the results of the survey."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from ..loading.registry import Registry
from ..loading.reload import ConfigReloader
from ..rpc.interceptor import SharedRpcState
from .backend_metrics import BackendMetricsCollector
from .http import CertificateFiles, MetricsServer
from .metrics import MetricsListener
from .state import StateCollector
from .survey import BackgroundSurvey

log = logging.getLogger(__name__)


class MetricsExporter:
    """Listens as soon as it is created."""

    def __init__(self, address: str, survey_seconds: int, certificate: CertificateFiles | None = None) -> None:
        """`survey_seconds` between two surveys, 0: none. Raises EndpointError."""
        self._survey_seconds = survey_seconds
        self._survey = BackgroundSurvey()
        self._collectors = CollectorRegistry(auto_describe=False)
        self.listener = MetricsListener(self._collectors)
        ProcessCollector(registry=self._collectors)
        self.server = MetricsServer(address, self._render, certificate)

    def on_serving(
        self,
        shared: SharedRpcState,
        registry: Registry,
        reloader: ConfigReloader,
        refused_answers: Callable[[], int] = lambda: 0,
    ) -> None:
        """`refused_answers` returns how many answers of nodes of the cluster were refused."""
        self._collectors.register(StateCollector(shared, registry, self._survey, reloader, refused_answers))
        self._collectors.register(BackendMetricsCollector(registry))
        if self._survey_seconds:
            self._survey.start(registry, self._survey_seconds)
        self.server.ready = True
        log.info("metrics are served", extra={"fields": {"address": self.server.address}})

    def on_stopping(self) -> None:
        self.server.ready = False
        self._survey.stop()

    def close(self) -> None:
        self.server.close()

    def _render(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(self._collectors), content_type
