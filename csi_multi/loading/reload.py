"""Replace the configuration of a running driver: completely, or not at all.

The file is read again at SIGHUP, and when it has changed and then stayed the same for one interval. Instances whose
section did not change are kept as they are. Instances that changed or were removed finish their running calls
and are then closed (registry.py).
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

# Keys of `driver:` that a reload may change. The others are stamped on resources, known to the orchestrator, or in use.
RELOADABLE = frozenset({"default_backend", "log_level", "log_style", "check_seconds", "reload_seconds"})

REMEDY = "restart the driver, or restore the earlier value"

FileState = tuple[int, int, int, int] | None
MakeRegistry = Callable[[Config, Mapping[str, Instance]], Registry]  # (configuration, instances to keep)


class ConfigReloader:
    """Watches one file for one registry. One thread uses it; any thread may read its attributes."""

    def __init__(
        self,
        file: Path,
        loaded: FileState,
        settings: Config,
        registry: Registry,
        make: MakeRegistry,
        node: str = "",
    ) -> None:
        """`settings` is what the registry was made from, and `make` makes a registry for other settings.

        `loaded` is the state of the file before the settings were read: what replaces it while the driver starts, which
        takes seconds, is a change.
        """
        self._file = file
        self._node = node
        self._registry = registry
        self._make = make
        self.settings = settings
        self.successful = True  # whether the last reload was
        self.succeeded_at = time.time()  # of the last successful reload
        self._loaded = self._last = loaded

    def check_file(self) -> None:
        """Reload a file that has changed since it was loaded, but not since the last call: it is written completely."""
        before, self._last = self._last, file_state(self._file)
        if self._last != self._loaded and self._last == before:
            self.reload()

    def reload(self) -> None:
        """Reload; an error in the file is logged, and the driver keeps its configuration."""
        self._loaded = self._last = file_state(self._file)
        try:
            wanted = load_config(self._file, self._node)
            self._apply(wanted)
        except ConfigError as error:
            self.successful = False
            log.error("the new configuration is not used; the driver keeps the earlier one: %s", error)
        except Exception:  # a package that is being replaced, a file nested too deeply: neither may end the driver
            self.successful = False
            log.exception("the new configuration is not used; the driver keeps the earlier one")

    def _apply(self, wanted: Config) -> None:
        """Raises ConfigError before it changes anything."""
        refuse_fixed_settings(self.settings, wanted)
        before = {one.name: one for one in self.settings.instances}
        same = {one.name for one in wanted.instances if one == before.get(one.name)}
        kept = {one.name: one for one in self._registry if one.name in same}
        other = self._make(wanted, kept)
        added = [one for one in other if one.name not in kept]
        if reasons := {name: why for name, why in other.broken.items() if name not in same}:
            _close(added)
            name, why = next(iter(reasons.items()))
            raise wanted.document.error(("backends", name), f"backends.{name}: {why}")
        try:
            self._registry.replace_with(other, wanted.driver.check_seconds)
        except RuntimeError:
            _close(added)
            raise
        if _logging(wanted) != _logging(self.settings):
            set_up_logging(*_logging(wanted))
        self.settings, self.successful, self.succeeded_at = wanted, True, time.time()
        names = {one.name for one in wanted.instances}
        changes = {
            "added": sorted(one.name for one in added),
            "removed": sorted(before.keys() - names),
            "kept": sorted(kept),
        }
        log.info("the new configuration is in use", extra={"fields": changes})


def refuse_fixed_settings(running: Config, wanted: Config) -> None:
    """Raise ConfigError for a changed setting that a running driver cannot change."""
    for name in Driver.__struct_fields__:
        if name not in RELOADABLE and getattr(running.driver, name) != getattr(wanted.driver, name):
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


def file_state(file: Path) -> FileState:
    """Return values that change with the file, also when a symbolic link gets another target; None: it is gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
