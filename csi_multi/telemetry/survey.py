"""How many volumes each instance has, and what could still be made: asked now and then, in the background.

An instance that hangs holds its own thread only, and what it answered before stays known, with its age.
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
from ..loading.backend_proxy import UnexpectedError
from ..loading.instance import Instance
from ..loading.registry import Registry
from ..loading.supervised import SupervisedCall

log = logging.getLogger(__name__)

PAGE = 1000  # volumes asked for at once
PAGES = 1000  # more than that, and it is a listing that does not end


@dataclass(frozen=True, slots=True)
class Found:
    when: float  # time.time()
    volumes: int | None = None
    size: int = 0  # bytes, of all volumes
    available: int | None = None  # bytes; None: no limit is known


class Surveys:
    """The last findings by instance."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Instance, Found]] = {}
        self._tasks: list[tuple[Instance, SupervisedCall[None]]] = []
        self._stop = threading.Event()

    def start(self, registry: Registry, seconds: float) -> None:
        """Survey every so many seconds."""
        threading.Thread(target=self._run, args=(registry, seconds), name="survey", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def found(self) -> dict[str, Found]:
        return {name: found for name, (_, found) in list(self._found.items())}

    def round(self, registry: Registry) -> None:
        """Begin with every instance that is not still at it; forget those that are not configured any more."""
        instances = [one for one in registry if _known_here(one)]
        running = [(one, task) for one, task in self._tasks if not task.done(0)]
        idle = [one for one in instances if not any(one is other for other, _ in running)]
        started = [(one, SupervisedCall(f"survey-{one.name}", functools.partial(self._keep, one))) for one in idle]
        self._tasks = running + started
        self._found = {name: kept for name, kept in self._found.items() if any(kept[0] is one for one in instances)}

    def _run(self, registry: Registry, seconds: float) -> None:
        self.round(registry)
        while not self._stop.wait(seconds):
            self.round(registry)

    def _keep(self, instance: Instance) -> None:
        try:
            self._found[instance.name] = (instance, survey(instance))
        except (StorageError, UnexpectedError) as error:
            log.info("backend %s: its volumes and capacity could not be asked for: %s", instance.name, error)


def survey(instance: Instance) -> Found:
    """Ask an instance. Raises StorageError, and UnexpectedError."""
    backend = instance.backend
    volumes, size = _listed(backend) if isinstance(backend, ListVolumes) else (None, 0)
    available = backend.capacity(CapacityRequest()).available if isinstance(backend, Capacity) else UNLIMITED
    return Found(time.time(), volumes, size, None if available == UNLIMITED else available)


def _listed(backend: ListVolumes) -> tuple[int | None, int]:
    """Return how many volumes there are, and their size; None for a listing that does not end."""
    volumes, size, cursor = 0, 0, ""
    for _ in range(PAGES):
        page = backend.list_volumes(PageRequest(cursor=cursor, limit=PAGE))
        volumes += len(page.items)
        size += sum(volume.size for volume in page.items)
        if not page.cursor or page.cursor == cursor:
            return volumes, size
        cursor = page.cursor
    return None, 0


def _known_here(instance: Instance) -> bool:
    """Whether this process is the one to ask: a thousand nodes need not count the volumes of one region."""
    backend = instance.backend
    setting = getattr(backend, "setting", None)
    return not instance.remote and (isinstance(backend, NodeLocal) or setting is None or setting.controller)
