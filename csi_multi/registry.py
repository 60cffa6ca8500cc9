"""The configured backend instances, loaded through stevedore, loudly.

A kind that is not installed, or installed twice, is the operator's to mend: the driver does not
start. A package that is broken (fails to import, half a feature, another contract) takes down its own
instances only: they answer UNAVAILABLE with the reason, and the others serve.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from stevedore.named import NamedExtensionManager

from .backend import GROUP, Backend, NodeLocal, Setting
from .config import Config, ConfigError, InstanceSection
from .errors import InvalidArgument, NotFound, StorageError, Unavailable
from .fitness import unfit
from .guard import Guard, said
from .host import Host
from .host.observe import Listeners, Observer, observed
from .params import unknown
from .patience import Hung, Task

log = logging.getLogger(__name__)

IMPORT = 10.0  # seconds a package may take to import
CONSTRUCT = 5.0  # seconds a constructor may take; it does no I/O
LATE = 30.0  # seconds after which a check that has not come back means that the instance is down
CLOSING = 10.0  # seconds all instances together may take to close


class UnfitBackend(Exception):
    """A package that cannot serve; the text names it and says why."""


@dataclass(slots=True)
class Instance:
    """One configured backend and whether its storage answered the last check."""

    name: str
    kind: str
    backend: Backend
    package: str = ""  # what it was installed from, and the version
    down: str = ""  # the reason, "" while up
    remote: bool = False  # its volumes are on the nodes of a cluster, and all work on them is done there
    since: float | None = None  # when it went up or down, time.time(); None: not known yet
    guard: Guard = field(init=False, repr=False)
    retired: threading.Event = field(default_factory=threading.Event, repr=False)  # not checked any more

    def watch_over(self, alone: bool) -> None:
        """Put the guard before the backend's methods; `alone`: no other instance needs a thread."""
        self.guard = Guard(self.name, self.kind, self.package or f"module {type(self.backend).__module__}", alone)
        self.guard.install(self.backend)

    def resume(self) -> None:
        """Finish what an earlier process left; a failure is logged."""
        try:
            self.backend.resume()
        except Exception:
            log.exception("backend %s: resuming earlier work failed", self.name)

    def check(self) -> None:
        """Ask the storage how it is; log when the answer changes."""
        try:
            self.backend.check()
            self.tell("")
        except StorageError as error:
            self.tell(said(error) or type(error).__name__)
        except Exception:
            log.exception("backend %s: check failed in an unexpected way", self.name)
            self.tell("its check failed in an unexpected way; see the log")

    def close(self) -> None:
        try:
            self.backend.close()
        except Exception:
            log.exception("backend %s: closing it failed", self.name)

    def tell(self, reason: str) -> None:
        """Keep why the instance cannot serve, "" if it can; log it when it is new."""
        if reason != self.down or self.since is None:
            log.log(logging.WARNING if reason else logging.INFO, "backend %s is %s", self.name, reason or "up")
        if bool(reason) != bool(self.down) or self.since is None:
            self.since = time.time()
        self.down = reason


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
            self.broken[instance.name] = f"it cannot be guarded: {type(error).__name__}: {said(error)}"
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
            Task(f"retire-{instance.name}", functools.partial(self._retire, instance, generation))

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
        tasks = [(instance.name, Task(f"close-{instance.name}", instance.close)) for instance in every]
        end = time.monotonic() + CLOSING
        for name, task in tasks:
            if not task.done(max(end - time.monotonic(), 0)):
                log.error("backend %s: closing it has not come back for %g s; it is left behind", name, CLOSING)

    def _watch(self, instance: Instance) -> None:
        self._await(instance, "resuming earlier work", instance.resume)
        self._await(instance, "its check", instance.check)
        while not instance.retired.wait(self._seconds):
            self._await(instance, "its check", instance.check)

    def _await(self, instance: Instance, what: str, function: Callable[[], None]) -> None:
        """Call it; as long as it does not come back, the instance counts as down."""
        task = Task(threading.current_thread().name, function)
        while not task.done(LATE) and not instance.retired.is_set():
            instance.tell(f"hanging: {what} has not come back for more than {LATE:g} s")


def load(
    config: Config,
    host: Host,
    *,
    controller: bool = True,
    listeners: Listeners = (),
    local: bool | None = None,
    kept: Mapping[str, Instance] = MappingProxyType({}),
) -> Registry:
    """Make all configured instances but those that are `kept`. Raises ConfigError for what the operator must mend.

    `local`: whether this process does the controller's work for node-local instances; None: as for all others.
    """
    refuse_uncertain(config)
    kinds = dict.fromkeys(section.kind for section in config.instances if section.name not in kept)
    classes, broken_kinds = backend_classes(kinds)
    instances, broken = [], {}
    for section in config.instances:
        if section.name in kept:
            instances.append(kept[section.name])
            continue
        try:
            if section.kind in broken_kinds:
                raise UnfitBackend(broken_kinds[section.kind])
            cls = classes[section.kind]
            special = local is not None and issubclass(cls, NodeLocal)
            made = _instance(config, section, cls, host, bool(local) if special else controller, listeners)
            made.remote = special and controller and not local
            instances.append(made)
        except Hung as error:  # for its other instances too: each would cost the start as much time
            broken_kinds[section.kind] = f"{package(section.kind)}: the constructor of {section.name!r} {error}"
            log.error("backend %s is broken: %s", section.name, broken_kinds[section.kind])
            broken[section.name] = broken_kinds[section.kind]
        except UnfitBackend as error:
            log.error("backend %s is broken: %s", section.name, error)
            broken[section.name] = str(error)
        except ConfigError:
            for made in (one for one in instances if one.name not in kept):
                made.close()
            raise
    return Registry(instances, broken, config.driver.default_backend)


def connect(config: Config, section: InstanceSection, cls: type[Backend], host: Host) -> Backend:
    """Make one configured backend with nothing before its methods, as its contract is tested. Raises like load."""
    return _instance(config, section, cls, host, controller=True).backend


def refuse_uncertain(config: Config) -> None:
    """Raise ConfigError when a configured kind is not installed, or installed more than once."""
    installed = {point.name for point in entry_points(group=GROUP)}
    for section in config.instances:
        where = ("backends", section.name, "kind")
        if section.kind not in installed:
            text = unknown(f"backends.{section.name}.kind", section.kind, installed, "kind")
            raise config.document.error(where, f"{text}; is its package installed?")
        if reason := doubled(section.kind):
            raise config.document.error(where, f"kind {section.kind!r} is {reason}")


def doubled(kind: str) -> str:
    """Say by whom a kind is provided more than once; "" when it is not.

    Counted here because stevedore's own conflict check misses duplicates that are not adjacent.
    """
    points = entry_points(group=GROUP, name=kind)
    owners = sorted(f"{point.value} of {point.dist.name if point.dist else '?'}" for point in points)
    return f"provided by {' and '.join(owners)}: remove one" if len(owners) > 1 else ""


def backend_classes(kinds: Iterable[str]) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return (class by kind, reason by kind that cannot be used)."""
    classes: dict[str, type[Backend]] = {}
    broken: dict[str, str] = {}
    for kind in kinds:
        try:
            found, reason = Task(f"import-{kind}", functools.partial(_imported, kind)).result(IMPORT)
        except Hung as error:
            found, reason = None, f"importing it {error}"
        except Exception as error:  # its metaclass, its schemas: looking at a class runs foreign code too
            found, reason = None, f"cannot be looked at: {type(error).__name__}: {said(error)}"
        if found is None or reason:
            broken[kind] = f"{package(kind)}: {reason}"
        else:
            classes[kind] = found
    return classes, broken


def _imported(kind: str) -> tuple[type[Backend] | None, str]:
    """Return a kind's class, and why it cannot be used ("" if it can)."""
    reasons: list[str] = []

    def absent(_names: Any) -> None:
        """Said below: what failed() has named is missing too."""

    def failed(_manager: Any, point: Any, error: BaseException) -> None:
        reasons.append(f"{point.value} cannot be imported: {type(error).__name__}: {said(error)}")

    try:
        manager = NamedExtensionManager(
            GROUP, [kind], on_load_failure_callback=failed, on_missing_entrypoints_callback=absent
        )
    except BaseException as error:  # stevedore lets AssertionError through, and SystemExit
        return None, f"cannot be imported: {type(error).__name__}: {said(error)}"
    for extension in manager:
        reason = unfit(extension.plugin)
        return extension.plugin, f"{extension.entry_point_target}: {reason}" if reason else ""
    return None, reasons[0] if reasons else "its entry point is not found"


def package(kind: str) -> str:
    """Return name and version of what a kind was installed from, for whoever has to mend it."""
    owners = [point.dist for point in entry_points(group=GROUP, name=kind) if point.dist]
    return f"{owners[0].name} {owners[0].version}" if owners else "no package"


def _instance(
    config: Config,
    section: InstanceSection,
    cls: type[Backend],
    host: Host,
    controller: bool,
    listeners: Listeners = (),
) -> Instance:
    path = ("backends", section.name)
    options = functools.partial(config.document.section, path, cls.Config, section.values)
    setting = Setting(
        instance=section.name,
        driver=config.driver.name,
        cluster=config.driver.cluster,
        node=config.driver.node,
        host=observed(host, section.name, listeners),
        controller=controller,
        observe=Observer(section.name, listeners),
    )
    try:
        made = Task(f"make-{section.name}", lambda: cls(options(), setting)).result(CONSTRUCT)
        return Instance(section.name, section.kind, made, package(section.kind))
    except StorageError as error:
        raise config.document.error(path, f"backends.{section.name}: {said(error)}") from None
    except (ConfigError, Hung):
        raise
    except Exception as error:
        log.exception("backend %s: its constructor failed", section.name)
        reason = f"its constructor raised {type(error).__name__}: {said(error)}"
        raise UnfitBackend(f"{package(section.kind)}: {reason}") from error
