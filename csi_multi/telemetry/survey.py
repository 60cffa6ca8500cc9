"""The number of volumes of each instance and its free capacity, read regularly in the background.

An instance that hangs blocks only its own thread, and its last result stays known, with its age.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from dataclasses import dataclass

from ..contract.backend import Capacity, ListVolumes, NodeLocal
from ..contract.errors import StorageError
from ..contract.model import UNLIMITED, CapacityRequest, PageRequest
from ..host.supervised import SupervisedCall
from ..loading.backend_proxy import UnexpectedError
from ..loading.instance import Instance
from ..loading.registry import Registry

log = logging.getLogger(__name__)

PAGE_SIZE = 1000  # volumes
MAX_PAGES = 1000  # a listing with more does not end


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """What one instance has."""

    read_at: float  # time.time()
    volumes: int | None = None
    size: int = 0  # bytes, of all volumes
    available: int | None = None  # bytes; None: no limit is known


class BackgroundSurvey:
    """The last result of each instance."""

    def __init__(self) -> None:
        self._results: dict[str, tuple[Instance, SurveyResult]] = {}
        self._calls: list[tuple[Instance, SupervisedCall[None]]] = []
        self._stop = threading.Event()

    def start(self, registry: Registry, seconds: float) -> None:
        """Survey all instances at this interval."""
        threading.Thread(target=self._run, args=(registry, seconds), name="survey", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def results(self) -> dict[str, SurveyResult]:
        return {name: result for name, (_, result) in list(self._results.items())}

    def start_round(self, registry: Registry) -> None:
        """Survey every instance whose last survey has ended; drop results of instances that are gone."""
        instances = [one for one in registry if _is_surveyed_here(one)]
        running = [(one, call) for one, call in self._calls if not call.done(0)]
        idle = [one for one in instances if not any(one is other for other, _ in running)]
        started = [(one, SupervisedCall(f"survey-{one.name}", functools.partial(self._survey, one))) for one in idle]
        self._calls = running + started
        self._results = {
            name: result for name, result in self._results.items() if any(result[0] is one for one in instances)
        }

    def _run(self, registry: Registry, seconds: float) -> None:
        self.start_round(registry)
        while not self._stop.wait(seconds):
            self.start_round(registry)

    def _survey(self, instance: Instance) -> None:
        try:
            self._results[instance.name] = (instance, survey_instance(instance))
        except (StorageError, UnexpectedError) as error:
            log.info("backend %s: its volumes and its capacity could not be read: %s", instance.name, error)


def survey_instance(instance: Instance) -> SurveyResult:
    """Read volumes and capacity of an instance. Raises StorageError, and UnexpectedError."""
    backend = instance.backend
    volumes, size = _count_volumes(backend) if isinstance(backend, ListVolumes) else (None, 0)
    available = backend.capacity(CapacityRequest()).available if isinstance(backend, Capacity) else UNLIMITED
    return SurveyResult(time.time(), volumes, size, None if available == UNLIMITED else available)


def _count_volumes(backend: ListVolumes) -> tuple[int | None, int]:
    """Return the number of volumes and their total size; None for a listing that does not end."""
    volumes, size, cursor = 0, 0, ""
    for _ in range(MAX_PAGES):
        page = backend.list_volumes(PageRequest(cursor=cursor, limit=PAGE_SIZE))
        volumes += len(page.items)
        size += sum(volume.size for volume in page.items)
        if not page.cursor or page.cursor == cursor:
            return volumes, size
        cursor = page.cursor
    return None, 0


def _is_surveyed_here(instance: Instance) -> bool:
    """Whether this process surveys the instance: not every node needs to count the volumes of one region."""
    backend = instance.backend
    setting = getattr(backend, "setting", None)
    return not instance.remote and (isinstance(backend, NodeLocal) or setting is None or setting.controller)
