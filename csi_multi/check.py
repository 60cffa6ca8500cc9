"""`csi-multi check`: validate a configuration and print what it would advertise. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from . import config, registry
from .backend import FEATURES, Backend
from .host import LocalHost
from .rpc.capabilities import Advertised, Mode, advertise


def check(file: Path) -> int:
    """Print the outcome; return 1 when an instance's package is broken. Raises ConfigError."""
    settings = config.load(file)
    instances = registry.load(settings, LocalHost())
    driver = settings.driver
    print(f"{file}: driver {driver.name}, node {driver.node}, cluster {driver.cluster} (no storage is asked)")
    for instance in instances:
        default = " (default)" if instance.name == driver.default_backend else ""
        print(f"  backend {instance.name}{default}: {instance.kind}: {', '.join(features(instance.backend))}")
    for name, reason in instances.broken.items():
        print(f"  backend {name}: BROKEN: {reason}")
    advertised = advertise((instance.backend for instance in instances), Mode.ALL, driver.alpha)
    for service in ("plugin", "controller", "group", "node"):
        print(f"  {service} capabilities: {', '.join(_names(advertised, service)) or 'none'}")
    return 1 if instances.broken else 0


def features(backend: Backend) -> list[str]:
    """Return the names of the optional features a backend has."""
    return [feature.__name__ for feature in FEATURES if isinstance(backend, feature)]


def _names(advertised: Advertised, service: str) -> list[str]:
    growth = {"ONLINE expansion": advertised.online_expansion, "OFFLINE expansion": advertised.offline_expansion}
    extra = [name for name, present in growth.items() if present] if service == "plugin" else []
    return advertised.of(service) + extra
