"""The configured backend instances by name: looked up, checked, replaced after a reload, and closed."""

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
from ..host.supervised import SupervisedCall
from .backend_proxy import error_text
from .instance import Instance

log = logging.getLogger(__name__)

CHECK_LIMIT = 30.0  # seconds; an instance whose check runs for longer counts as down
CLOSE_LIMIT = 10.0  # seconds for all instances together to close


class Registry:
    """All instances by name, and the broken ones with their reasons, so that their RPCs can report them."""

    def __init__(self, instances: Iterable[Instance], broken: dict[str, str] | None = None, default: str = "") -> None:
        self._instances = {instance.name: instance for instance in instances}
        self.broken = dict(broken or {})
        self.default = default
        self.generation = 0  # of the configuration: how often it was replaced
        self._root = self  # the registry that this one is a subset of
        self._subsets: list[tuple[Registry, Callable[[Backend], bool]]] = []
        self._changed = threading.Condition()
        self._running_rpcs: Counter[int] = Counter()  # by the generation they began in
        self._retiring: list[Instance] = []  # replaced or removed, and still in use
        self._check_seconds = 0.0  # between two checks; 0: not started
        unshared = len(self._instances) == 1
        for instance in [*self]:
            if not hasattr(instance, "proxy"):
                self._install_proxy(instance, unshared)

    def _install_proxy(self, instance: Instance, unshared: bool) -> None:
        try:
            instance.install_proxy(unshared)
        except Exception as error:  # an object whose attributes raise, or cannot be replaced
            log.exception("backend %s is broken: its methods cannot be wrapped", instance.name)
            self.broken[instance.name] = f"its methods cannot be wrapped: {type(error).__name__}: {error_text(error)}"
            del self._instances[instance.name]

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def subset(self, keep: Callable[[Backend], bool]) -> Registry:
        """Return a registry of the instances whose backend `keep` accepts, and of all broken ones."""
        subset = Registry((), self.broken, self.default)
        subset._instances = {instance.name: instance for instance in self if keep(instance.backend)}
        subset._root = self._root
        self._subsets.append((subset, keep))
        return subset

    def names(self) -> Collection[str]:
        """Return the names of all configured instances, broken ones included."""
        return self._instances.keys() | self.broken.keys()

    def get(self, name: str) -> Instance:
        """Return the instance. Raises NotFound for one that is not configured, Unavailable for a broken one."""
        with self._root._changed:
            reason, instance = self.broken.get(name), self._instances.get(name)
        if reason is not None:
            raise Unavailable(f"backend {name!r} is broken: {reason}")
        if instance is None:
            raise NotFound(f"no backend {name!r} is configured here")
        return instance

    def choose(self, name: str | None) -> Instance:
        """Return the instance that a StorageClass names (None: the default). Raises InvalidArgument."""
        with self._root._changed:
            wanted = name if name is not None else self.default
            names = sorted(self.names())
        if not wanted:
            raise InvalidArgument(
                f"parameter 'backend' is required because driver.default_backend is not set; valid: {', '.join(names)}"
            )
        if wanted not in names:
            raise InvalidArgument(unknown("parameter 'backend'", wanted, names, "instance"))
        return self.get(wanted)

    def degraded(self) -> dict[str, str]:
        """Return the reason of every instance that cannot serve now, by name."""
        return self.broken | {instance.name: instance.down_reason for instance in self if instance.down_reason}

    def start(self, check_seconds: float) -> None:
        """Resume what an earlier process left, then check each instance at this interval, in a thread of its own."""
        self._check_seconds = check_seconds
        for instance in self:
            self._start_checks(instance)

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        """Keep the present instances open for the block, also when a reload replaces them meanwhile."""
        root = self._root
        with root._changed:
            generation = root.generation
            root._running_rpcs[generation] += 1
        try:
            yield
        finally:
            with root._changed:
                root._running_rpcs[generation] -= 1
                if generation != root.generation:
                    root._changed.notify_all()

    def replace_with(self, other: Registry, check_seconds: float) -> None:
        """Take over the content of another registry; what is not in it is closed once no RPC can use it.

        Raises RuntimeError, and changes nothing, when the threads that check the new instances cannot be started.
        """
        added = [one for one in other if not any(one is old for old in self)]
        self._check_seconds, before_seconds = check_seconds, self._check_seconds
        try:
            for instance in added:
                self._start_checks(instance)
        except RuntimeError:
            self._check_seconds = before_seconds
            for instance in added:
                instance.retire()
            raise
        with self._changed:
            before, generation = [*self], self.generation
            self._replace(other)
            removed = [one for one in before if not any(one is new for new in self)]
            self._retiring += removed
        for instance in self:
            instance.proxy.admission.unshared = len(self._instances) == 1
        for instance in removed:
            instance.retire()
            SupervisedCall(f"retire-{instance.name}", functools.partial(self._retire, instance, generation))

    def _replace(self, other: Registry) -> None:
        self._instances, self.broken, self.default = other._instances, other.broken, other.default
        self.generation += 1
        for subset, keep in self._subsets:
            subset._replace(other.subset(keep))

    def _retire(self, instance: Instance, generation: int) -> None:
        """Close an instance of an older generation, once all RPCs that began in it have ended."""
        with self._changed:
            rpcs = self._running_rpcs
            self._changed.wait_for(lambda: not any(rpcs[one] for one in rpcs if one <= generation))
            still_open = any(instance is one for one in self._retiring)  # close() may have come first
            self._retiring = [one for one in self._retiring if one is not instance]
        if still_open:
            instance.close()
            log.info("backend %s: the instance of the earlier configuration is closed", instance.name)

    def running_rpcs(self) -> list[str]:
        """Return the RPCs that run in the backends, for example "CreateVolume for 3.1 s in backend fast"."""
        return [
            f"{call} in backend {instance.name}"
            for instance in [*self, *self._retiring]
            for call in instance.proxy.admission.running_rpcs()
        ]

    def close(self) -> None:
        """Close all instances at the same time; wait at most CLOSE_LIMIT for those that hang."""
        with self._changed:
            instances, self._retiring = [*self, *self._retiring], []
        for instance in instances:
            instance.retire()
        calls = [(instance.name, SupervisedCall(f"close-{instance.name}", instance.close)) for instance in instances]
        end = time.monotonic() + CLOSE_LIMIT
        for name, call in calls:
            if not call.done(max(end - time.monotonic(), 0)):
                log.error(
                    "backend %s: close did not return within %g s; the driver stops without it", name, CLOSE_LIMIT
                )

    def _start_checks(self, instance: Instance) -> None:
        if self._check_seconds and not instance.remote:
            name = f"check-{instance.name}"
            threading.Thread(target=self._check_repeatedly, args=(instance,), name=name, daemon=True).start()

    def _check_repeatedly(self, instance: Instance) -> None:
        self._wait_for(instance, "resume", instance.resume)
        self._wait_for(instance, "check", instance.check)
        while instance.schedule.wait(lambda: self._check_seconds, lambda: bool(instance.down_reason)):
            self._wait_for(instance, "check", instance.check)

    def _wait_for(self, instance: Instance, name: str, function: Callable[[], None]) -> None:
        """Call the function; the instance counts as down while it runs longer than CHECK_LIMIT."""
        call = SupervisedCall(threading.current_thread().name, function)
        while not call.done(CHECK_LIMIT) and not instance.retired:
            instance.set_state(f"hanging: {name} has not returned for more than {CHECK_LIMIT:g} s")
