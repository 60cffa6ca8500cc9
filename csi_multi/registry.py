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
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from stevedore.named import NamedExtensionManager

from .backend import GROUP, Backend, Setting
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
    since: float | None = None  # when it went up or down, time.time(); None: not known yet
    guard: Guard = field(init=False, repr=False)

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
        self._stop = threading.Event()
        alone = len(self._instances) == 1
        for instance in [*self]:
            try:
                instance.watch_over(alone)
            except Exception as error:  # an object whose attributes raise, or cannot be replaced
                log.exception("backend %s is broken: it cannot be guarded", instance.name)
                self.broken[instance.name] = f"it cannot be guarded: {type(error).__name__}: {said(error)}"
                del self._instances[instance.name]

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def names(self) -> Collection[str]:
        """Return the names of all configured instances, broken ones too."""
        return self._instances.keys() | self.broken.keys()

    def get(self, name: str) -> Instance:
        """Return the instance. Raises NotFound for one that is not configured, Unavailable if broken."""
        if name in self.broken:
            raise Unavailable(f"backend {name!r} is broken: {self.broken[name]}")
        if name not in self._instances:
            raise NotFound(f"no backend {name!r} is configured here")
        return self._instances[name]

    def choose(self, name: str | None) -> Instance:
        """Return the instance a StorageClass asks for (None: the default). Raises InvalidArgument."""
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
        for instance in self:
            name = f"check-{instance.name}"
            threading.Thread(target=self._watch, args=(instance, seconds), name=name, daemon=True).start()

    def running(self) -> list[str]:
        """Say which calls run in the backends, for example "CreateVolume for 3.1 s in backend fast"."""
        return [f"{call} in backend {instance.name}" for instance in self for call in instance.guard.room.running()]

    def close(self) -> None:
        """Close all instances at once, and wait for those that hang no longer than CLOSING."""
        self._stop.set()
        tasks = {instance.name: Task(f"close-{instance.name}", instance.close) for instance in self}
        end = time.monotonic() + CLOSING
        for name, task in tasks.items():
            if not task.done(max(end - time.monotonic(), 0)):
                log.error("backend %s: closing it has not come back for %g s; it is left behind", name, CLOSING)

    def _watch(self, instance: Instance, seconds: float) -> None:
        self._await(instance, "resuming earlier work", instance.resume)
        self._await(instance, "its check", instance.check)
        while not self._stop.wait(seconds):
            self._await(instance, "its check", instance.check)

    def _await(self, instance: Instance, what: str, function: Callable[[], None]) -> None:
        """Call it; as long as it does not come back, the instance counts as down."""
        task = Task(threading.current_thread().name, function)
        while not task.done(LATE) and not self._stop.is_set():
            instance.tell(f"hanging: {what} has not come back for more than {LATE:g} s")


def load(config: Config, host: Host, *, controller: bool = True, listeners: Listeners = ()) -> Registry:
    """Make all configured instances. Raises ConfigError for what the operator must mend."""
    refuse_uncertain(config)
    classes, broken_kinds = backend_classes(dict.fromkeys(section.kind for section in config.instances))
    instances, broken = [], {}
    for section in config.instances:
        try:
            if section.kind in broken_kinds:
                raise UnfitBackend(broken_kinds[section.kind])
            instances.append(_instance(config, section, classes[section.kind], host, controller, listeners))
        except Hung as error:  # for its other instances too: each would cost the start as much time
            broken_kinds[section.kind] = f"{package(section.kind)}: the constructor of {section.name!r} {error}"
            log.error("backend %s is broken: %s", section.name, broken_kinds[section.kind])
            broken[section.name] = broken_kinds[section.kind]
        except UnfitBackend as error:
            log.error("backend %s is broken: %s", section.name, error)
            broken[section.name] = str(error)
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
