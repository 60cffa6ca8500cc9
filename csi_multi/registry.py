"""The configured backend instances, loaded through stevedore, loudly.

A kind that is not installed, or installed twice, is the operator's to mend: the driver does not
start. A package that is broken (fails to import, half a feature, another contract) takes down its own
instances only: they answer UNAVAILABLE with the reason, and the others serve.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from stevedore.named import NamedExtensionManager

from .backend import CONTRACT, FEATURES, GROUP, Backend, Setting
from .config import Config, ConfigError, InstanceSection
from .errors import InvalidArgument, NotFound, StorageError, Unavailable
from .host import Host
from .params import Schema, describe, unknown

log = logging.getLogger(__name__)

SCHEMAS = ("Config", "Parameters", "MutableParameters", "SnapshotParameters", "GroupSnapshotParameters")


class UnfitBackend(Exception):
    """A package that cannot serve; the text names it and says why."""


@dataclass(slots=True)
class Instance:
    """One configured backend and whether its storage answered the last check."""

    name: str
    kind: str
    backend: Backend
    down: str = ""  # the reason, "" while up
    _told: bool = field(default=False, repr=False)

    def check(self) -> None:
        """Ask the storage how it is; log when the answer changes."""
        try:
            self.backend.check()
            reason = ""
        except StorageError as error:
            reason = str(error)
        except Exception:
            log.exception("backend %s: check failed in an unexpected way", self.name)
            reason = "its check failed in an unexpected way; see the log"
        if reason != self.down or not self._told:
            log.log(logging.WARNING if reason else logging.INFO, "backend %s is %s", self.name, reason or "up")
        self.down, self._told = reason, True


class Registry:
    """All instances by name; broken ones are known too, so that their RPCs can say why."""

    def __init__(self, instances: Iterable[Instance], broken: dict[str, str] | None = None, default: str = "") -> None:
        self._instances = {instance.name: instance for instance in instances}
        self.broken = broken or {}
        self._default = default
        self._stop = threading.Event()

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def get(self, name: str) -> Instance:
        """Return the instance. Raises NotFound for one that is not configured, Unavailable if broken."""
        if name in self.broken:
            raise Unavailable(f"backend {name!r} is broken: {self.broken[name]}")
        if name not in self._instances:
            raise NotFound(f"no backend {name!r} is configured here")
        return self._instances[name]

    def choose(self, name: str | None) -> Instance:
        """Return the instance a StorageClass asks for (None: the default). Raises InvalidArgument."""
        wanted = name if name is not None else self._default
        names = sorted([*self._instances, *self.broken])
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

    def close(self) -> None:
        self._stop.set()
        for instance in self:
            try:
                instance.backend.close()
            except Exception:
                log.exception("backend %s: closing it failed", instance.name)

    def _watch(self, instance: Instance, seconds: float) -> None:
        try:
            instance.backend.resume()
        except Exception:
            log.exception("backend %s: resuming earlier work failed", instance.name)
        instance.check()
        while not self._stop.wait(seconds):
            instance.check()


def load(config: Config, host: Host) -> Registry:
    """Make all configured instances. Raises ConfigError for what the operator must mend."""
    refuse_uncertain(config)
    classes, broken_kinds = backend_classes({section.kind for section in config.instances})
    instances, broken = [], {}
    for section in config.instances:
        try:
            if section.kind in broken_kinds:
                raise UnfitBackend(broken_kinds[section.kind])
            instances.append(_instance(config, section, classes[section.kind], host))
        except UnfitBackend as error:
            log.error("backend %s is broken: %s", section.name, error)
            broken[section.name] = str(error)
    return Registry(instances, broken, config.driver.default_backend)


def refuse_uncertain(config: Config) -> None:
    """Raise ConfigError when a configured kind is not installed, or installed more than once.

    Counted here because stevedore's own conflict check misses duplicates that are not adjacent.
    """
    installed = Counter(point.name for point in entry_points(group=GROUP))
    for section in config.instances:
        where = ("backends", section.name, "kind")
        if not installed[section.kind]:
            text = unknown(f"backends.{section.name}.kind", section.kind, installed, "kind")
            raise config.document.error(where, f"{text}; is its package installed?")
        if installed[section.kind] > 1:
            owners = sorted(
                f"{point.value} of {point.dist.name if point.dist else '?'}"
                for point in entry_points(group=GROUP, name=section.kind)
            )
            raise config.document.error(
                where, f"kind {section.kind!r} is provided by {' and '.join(owners)}: remove one"
            )


def backend_classes(kinds: Iterable[str]) -> tuple[dict[str, type[Backend]], dict[str, str]]:
    """Return (class by kind, reason by kind that cannot be used)."""
    classes: dict[str, type[Backend]] = {}
    broken: dict[str, str] = {}

    def failed(_manager: Any, point: Any, error: BaseException) -> None:
        broken[point.name] = f"{point.value} cannot be imported: {type(error).__name__}: {error}"

    def absent(names: Iterable[str]) -> None:
        for name in names:  # what failed() named is missing too
            broken.setdefault(name, "its entry point is not found")

    for kind in kinds:
        try:
            manager = NamedExtensionManager(
                GROUP, [kind], on_load_failure_callback=failed, on_missing_entrypoints_callback=absent
            )
        except (AssertionError, SystemExit) as error:  # stevedore lets these through
            broken[kind] = f"its package cannot be imported: {type(error).__name__}: {error}"
            continue
        for extension in manager:
            if reason := unfit(extension.plugin):
                broken[kind] = f"{extension.entry_point_target}: {reason}"
            else:
                classes[kind] = extension.plugin
    return classes, broken


def unfit(candidate: Any) -> str:
    """Say why a class cannot be a backend; "" if it can."""
    if not (inspect.isclass(candidate) and issubclass(candidate, Backend)):
        return "is not a class derived from csi_multi.backend.Backend"
    declared = getattr(candidate, "contract", None)
    if not (isinstance(declared, tuple) and [type(part) for part in declared] == [int, int]):
        return f"does not declare the contract it was written for, for example contract = {CONTRACT}"
    if declared[0] != CONTRACT[0] or declared[1] > CONTRACT[1]:
        return f"was written for contract {declared}, this driver speaks {CONTRACT}; install a matching version"
    if absent := sorted(getattr(candidate, "__abstractmethods__", ())):
        return f"lacks {', '.join(absent)}: a feature is implemented whole or not at all"
    reasons = (*(_odd_schema(candidate, name) for name in SCHEMAS), *(_undeclared(candidate, one) for one in FEATURES))
    return next((reason for reason in reasons if reason), "")


def _odd_schema(candidate: type[Backend], name: str) -> str:
    schema = getattr(candidate, name)
    if not (inspect.isclass(schema) and issubclass(schema, Schema)):
        return f"{name} is not a class derived from csi_multi.params.Schema"
    try:
        list(describe(schema))
    except Exception as error:
        return f"{name} is not a schema that can be used: {error}"
    return ""


def _undeclared(candidate: type[Backend], feature: type[Backend]) -> str:
    if issubclass(candidate, feature):
        return ""
    own = [name for name in getattr(feature, "__abstractmethods__", ()) if name not in Backend.__abstractmethods__]
    found = [name for name in own if hasattr(candidate, name) and feature.__dict__.get(name) is not None]
    return f"has {found[0]} but does not derive from {feature.__name__}" if found else ""


def _instance(config: Config, section: InstanceSection, cls: type[Backend], host: Host) -> Instance:
    path = ("backends", section.name)
    options = config.document.section(path, cls.Config, section.values)
    setting = Setting(
        instance=section.name,
        driver=config.driver.name,
        cluster=config.driver.cluster,
        node=config.driver.node,
        host=host,
    )
    try:
        return Instance(section.name, section.kind, cls(options, setting))
    except StorageError as error:
        raise config.document.error(path, f"backends.{section.name}: {error}") from None
    except ConfigError:
        raise
    except Exception as error:
        log.exception("backend %s: its constructor failed", section.name)
        raise UnfitBackend(f"its constructor raised {type(error).__name__}: {error}") from error
