"""All configured backend instances by name: looking them up, checking their storage, replacing and closing them."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from ..contract.backend import Backend
from ..contract.errors import InvalidArgument, NotFound, Unavailable
from ..contract.params import unknown
from .backend_proxy import error_text
from .instance import Instance
from .supervised import SupervisedCall

log = logging.getLogger(__name__)

CHECK_LIMIT = 30.0  # seconds after which a check that has not come back means that the instance is down
CLOSE_LIMIT = 10.0  # seconds all instances together may take to close


class Registry:
    """All instances by name; broken ones are known too, so that their RPCs can say why."""

    def __init__(self, instances: Iterable[Instance], broken: dict[str, str] | None = None, default: str = "") -> None:
        self._instances = {instance.name: instance for instance in instances}
        self.broken = dict(broken or {})
        self.default = default
        self.generation = 0  # of the configuration: how often it was replaced
        self._whole = self  # what this is a part of
        self._parts: list[tuple[Registry, Callable[[Backend], bool]]] = []
        self._changing = threading.Condition()
        self._users: Counter[int] = Counter()  # RPCs by the generation they began in
        self._leaving: list[Instance] = []  # replaced or removed, and still in use
        self._seconds = 0.0  # between two checks; 0: not started
        alone = len(self._instances) == 1
        for instance in [*self]:
            if not hasattr(instance, "guard"):
                self._guard(instance, alone)

    def _guard(self, instance: Instance, alone: bool) -> None:
        try:
            instance.watch_over(alone)
        except Exception as error:  # an object whose attributes raise, or cannot be replaced
            log.exception("backend %s is broken: it cannot be guarded", instance.name)
            self.broken[instance.name] = f"it cannot be guarded: {type(error).__name__}: {error_text(error)}"
            del self._instances[instance.name]

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def part(self, keep: Callable[[Backend], bool]) -> Registry:
        """Return a registry of some of the instances, the very same ones; of broken ones all, whatever they are."""
        part = Registry((), self.broken, self.default)
        part._instances = {instance.name: instance for instance in self if keep(instance.backend)}
        part._whole = self._whole
        self._parts.append((part, keep))
        return part

    def names(self) -> Collection[str]:
        """Return the names of all configured instances, broken ones too."""
        return self._instances.keys() | self.broken.keys()

    def get(self, name: str) -> Instance:
        """Return the instance. Raises NotFound for one that is not configured, Unavailable if broken."""
        with self._whole._changing:
            reason, instance = self.broken.get(name), self._instances.get(name)
        if reason is not None:
            raise Unavailable(f"backend {name!r} is broken: {reason}")
        if instance is None:
            raise NotFound(f"no backend {name!r} is configured here")
        return instance

    def choose(self, name: str | None) -> Instance:
        """Return the instance a StorageClass asks for (None: the default). Raises InvalidArgument."""
        with self._whole._changing:
            wanted = name if name is not None else self.default
            names = sorted(self.names())
        if not wanted:
            raise InvalidArgument(f"parameter 'backend' is required: there is no default_backend; one of {names}")
        if wanted not in names:
            raise InvalidArgument(unknown("parameter 'backend'", wanted, names, "instance"))
        return self.get(wanted)

    def degraded(self) -> dict[str, str]:
        """Return the reason by name of every instance that cannot serve now."""
        return self.broken | {instance.name: instance.down for instance in self if instance.down}

    def start(self, seconds: float) -> None:
        """Resume what an earlier process left, then check each instance now and then, in its own thread."""
        self._seconds = seconds
        for instance in self:
            self._look_after(instance)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the instances of now open for the block, whatever configuration comes meanwhile."""
        whole = self._whole
        with whole._changing:
            generation = whole.generation
            whole._users[generation] += 1
        try:
            yield
        finally:
            with whole._changing:
                whole._users[generation] -= 1
                if generation != whole.generation:
                    whole._changing.notify_all()

    def adopt(self, other: Registry, seconds: float) -> None:
        """Have what another registry has from now on; what is not in it is closed once no RPC can be using it."""
        with self._changing:
            before, generation = [*self], self.generation
            self._replace(other)
            fresh = [one for one in self if not any(one is old for old in before)]
            left = [one for one in before if not any(one is new for new in self)]
            self._leaving += left
        self._seconds = seconds
        for instance in self:
            instance.guard.room.alone = len(self._instances) == 1
        for instance in fresh:
            self._look_after(instance)
        for instance in left:
            instance.retired.set()
            SupervisedCall(f"retire-{instance.name}", functools.partial(self._retire, instance, generation))

    def _replace(self, other: Registry) -> None:
        self._instances, self.broken, self.default = other._instances, other.broken, other.default
        self.generation += 1
        for part, keep in self._parts:
            part._replace(other.part(keep))

    def _retire(self, instance: Instance, generation: int) -> None:
        """Close what was left behind by a change of this generation, once all RPCs from before have ended."""
        with self._changing:
            self._changing.wait_for(lambda: not any(self._users[one] for one in self._users if one <= generation))
            mine = any(instance is one for one in self._leaving)  # at the end of the process it is closed anyhow
            self._leaving = [one for one in self._leaving if one is not instance]
        if mine:
            instance.close()
            log.info("backend %s: what it was before is closed", instance.name)

    def _look_after(self, instance: Instance) -> None:
        if self._seconds and not instance.remote:
            name = f"check-{instance.name}"
            threading.Thread(target=self._watch, args=(instance,), name=name, daemon=True).start()

    def running(self) -> list[str]:
        """Say which calls run in the backends, for example "CreateVolume for 3.1 s in backend fast"."""
        every = [*self, *self._leaving]
        return [f"{call} in backend {instance.name}" for instance in every for call in instance.guard.room.running()]

    def close(self) -> None:
        """Close all instances at once, and wait for those that hang no longer than CLOSING."""
        with self._changing:
            every, self._leaving = [*self, *self._leaving], []
        for instance in every:
            instance.retired.set()
        tasks = [(instance.name, SupervisedCall(f"close-{instance.name}", instance.close)) for instance in every]
        end = time.monotonic() + CLOSE_LIMIT
        for name, task in tasks:
            if not task.done(max(end - time.monotonic(), 0)):
                log.error("backend %s: closing it has not come back for %g s; it is left behind", name, CLOSE_LIMIT)

    def _watch(self, instance: Instance) -> None:
        self._await(instance, "resuming earlier work", instance.resume)
        self._await(instance, "its check", instance.check)
        while not instance.retired.wait(self._seconds):
            self._await(instance, "its check", instance.check)

    def _await(self, instance: Instance, what: str, function: Callable[[], None]) -> None:
        """Call it; as long as it does not come back, the instance counts as down."""
        task = SupervisedCall(threading.current_thread().name, function)
        while not task.done(CHECK_LIMIT) and not instance.retired.is_set():
            instance.tell(f"hanging: {what} has not come back for more than {CHECK_LIMIT:g} s")
