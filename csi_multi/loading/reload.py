"""Take over a changed configuration while the driver runs: all of it, or nothing.

The file is read again when it has changed and then stayed the same for a while, or at SIGHUP. Instances whose
section did not change are kept as they are. Of those that were changed or removed, calls that run go on
to their end, and then they are closed (registry.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ..config.document import ConfigError
from ..config.settings import Config, Driver, load_config
from ..logs.handlers import set_up_logging
from .instance import Instance
from .registry import Registry

log = logging.getLogger(__name__)

# Of the section `driver`. All else needs a restart: it is on resources, in the orchestrator, or in use.
CHANGEABLE = frozenset({"default_backend", "log_level", "log_style", "check_seconds", "reload_seconds"})

REMEDY = "restart it, or put back what was there"

FileState = tuple[int, int, int, int] | None
MakeRegistry = Callable[[Config, Mapping[str, Instance]], Registry]  # (configuration, instances to keep)


class ConfigReloader:
    """Watches one file for one registry. Used by one thread; what it tells may be read by any."""

    def __init__(self, file: Path, settings: Config, registry: Registry, make: MakeRegistry, node: str = "") -> None:
        """`settings` is what the registry was made from, `make` makes another registry like it."""
        self._file = file
        self._node = node
        self._registry = registry
        self._make = make
        self.settings = settings
        self.successful = True  # the last one
        self.when = time.time()  # of the last successful one
        self._read = self._seen = _file_state(file)

    def look(self) -> None:
        """Reload if the file changed before the look before this one: nobody is writing it any more."""
        before, self._seen = self._seen, _file_state(self._file)
        if self._seen != self._read and self._seen == before:
            self.now()

    def now(self) -> None:
        """Reload; what is wrong with the file is logged, and the driver goes on as before."""
        self._read = self._seen = _file_state(self._file)
        try:
            wanted = load_config(self._file, self._node)
            self._take(wanted)
        except ConfigError as error:
            self.successful = False
            log.error("the new configuration is not taken, the one before stays: %s", error)
        except Exception:  # packages that are being replaced, a file that is too deep: no reason to end a driver
            self.successful = False
            log.exception("the new configuration is not taken, the one before stays")

    def _take(self, wanted: Config) -> None:
        """Raises ConfigError before anything has changed."""
        refuse_fixed(self.settings, wanted)
        before = {one.name: one for one in self.settings.instances}
        same = {one.name for one in wanted.instances if one == before.get(one.name)}
        kept = {one.name: one for one in self._registry if one.name in same}
        other = self._make(wanted, kept)
        fresh = [one for one in other if one.name not in kept]
        if reasons := {name: why for name, why in other.broken.items() if name not in same}:
            _close(fresh)
            name, why = next(iter(reasons.items()))
            raise wanted.document.error(("backends", name), f"backends.{name}: {why}")
        if (wanted.driver.log_level, wanted.driver.log_style) != _logging(self.settings):
            set_up_logging(*_logging(wanted))
        self._registry.adopt(other, wanted.driver.check_seconds)
        self.settings, self.successful, self.when = wanted, True, time.time()
        names = {one.name for one in wanted.instances}
        changes = {
            "made": sorted(one.name for one in fresh),
            "removed": sorted(before.keys() - names),
            "kept": sorted(kept),
        }
        log.info("a new configuration is taken", extra={"fields": changes})


def refuse_fixed(running: Config, wanted: Config) -> None:
    """Raise ConfigError for a setting that a running driver cannot change."""
    for name in Driver.__struct_fields__:
        if name not in CHANGEABLE and getattr(running.driver, name) != getattr(wanted.driver, name):
            raise wanted.document.error(
                ("driver", name), f"driver.{name} cannot change while the driver runs: {REMEDY}"
            )
    if running.cluster != wanted.cluster:
        raise wanted.document.error(("cluster",), f"cluster cannot change while the driver runs: {REMEDY}")


def _logging(settings: Config) -> tuple[str, str]:
    return settings.driver.log_level, settings.driver.log_style


def _close(instances: Iterable[Instance]) -> None:
    for instance in instances:
        instance.close()


def _file_state(file: Path) -> FileState:
    """Return what changes when the file does, also when it is a link that is pointed elsewhere; None: it is gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
